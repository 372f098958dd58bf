// Random calls of the C ABI over valid memory: wrong enums, sizes, shapes, pointers and numbers among right
// ones. No call may crash, write outside its buffers, or change a buffer and then fail. Ten seconds by
// default; OCTAVO_FUZZ_SECONDS=600 and OCTAVO_FUZZ_SEED=n run it longer or again (build it with the asan
// preset for that).
// SPDX-License-Identifier: MIT
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"

#include <octavo/codec.h>
#include <octavo/octavo.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace test {
namespace {

const auto kFormats = static_cast<std::uint64_t>(octavo_format_count());
constexpr std::int64_t kRoom = 1 << 16;  // bytes of every buffer; a request beyond it is not made

double seconds() {
  const char* text = std::getenv("OCTAVO_FUZZ_SECONDS");
  return text != nullptr ? std::atof(text) : 10.0;
}

std::uint64_t seed() {
  const char* text = std::getenv("OCTAVO_FUZZ_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

class Fuzzer {
 public:
  explicit Fuzzer(std::uint64_t start) : random_(start) {}

  void run_one() {
    switch (random_.below(11)) {
      case 0:
      case 1:
        return moment();
      case 2:
        return names();
      case 3:
      case 4:
        return transducer();
      case 5:
        return fp8();
      default:
        return engine();
    }
  }

  std::int64_t accepted = 0;

 private:
  // Usually a small valid number, sometimes any number.
  uint32_t enumerator(std::uint64_t count) {
    return static_cast<uint32_t>(random_.chance(40) ? random_.bits() : random_.below(count));
  }

  std::int64_t wild_integer() {
    constexpr std::array<std::int64_t, 10> kWild = {
        -1, INT64_MIN, INT64_MAX, 0, 1, 33, 31, 1 << 20, std::int64_t{1} << 48, (std::int64_t{1} << 62) + 1};
    return random_.chance(2) ? kWild[random_.below(kWild.size())] : static_cast<std::int64_t>(random_.bits());
  }

  double number(double usual) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr double kWild[] = {-1.0,   0.0,    -0.0,  1.0,    1e300,
                                -1e300, 5e-324, 1e-45, 3.4e38, 0.9999999999999999};
    if (!random_.chance(25)) return usual;
    switch (random_.below(4)) {
      case 0:
        return std::numeric_limits<double>::quiet_NaN();
      case 1:
        return random_.chance(2) ? kInf : -kInf;
      case 2:
        return kWild[random_.below(std::size(kWild))];
      default:
        return std::bit_cast<double>(random_.bits());
    }
  }

  std::int64_t block_size() {
    if (random_.chance(20)) return wild_integer();
    return random_.chance(2) ? 0 : std::int64_t{32} << random_.below(8);
  }

  // A number of elements and a shape; most agree.
  void shape(std::int64_t& numel, int32_t& ndim, int64_t (&dims)[8]) {
    ndim = static_cast<int32_t>(random_.below(5));
    numel = 1;
    for (int i = 0; i < ndim; ++i)
      numel *= dims[i] = static_cast<std::int64_t>(random_.below(random_.chance(6) ? 2 : 9));
    if (ndim == 0) numel = static_cast<std::int64_t>(random_.below(2500));
    if (random_.chance(30)) numel = wild_integer();
    if (random_.chance(60)) ndim = static_cast<int32_t>(random_.bits());
    if (random_.chance(30)) dims[random_.below(8)] = wild_integer();
  }

  uint32_t size_field(std::size_t right) {
    return random_.chance(80) ? static_cast<uint32_t>(random_.bits()) : static_cast<uint32_t>(right);
  }

  // A buffer of exactly `bytes` with random contents; sometimes its pointer is null or off by one byte.
  void* pointer(std::int64_t bytes, std::int64_t unit) {
    buffers_.emplace_back(std::clamp<std::int64_t>(bytes, 0, kRoom),
                          unit * static_cast<std::int64_t>(random_.below(4)));
    Buffer& buffer = buffers_.back();
    for (std::int64_t i = 0; i < buffer.size(); ++i)
      buffer.data()[i] = static_cast<std::byte>(random_.bits());
    // A call never gets a buffer that is smaller than it asks for.
    if (bytes > kRoom || random_.chance(60)) return nullptr;
    if (unit > 1 && random_.chance(60)) return buffer.data() + 1;  // refused before it is used
    return buffer.data();
  }

  void forget() { buffers_.clear(); }

  [[nodiscard]] bool intact() const {
    return std::all_of(buffers_.begin(), buffers_.end(),
                       [](const Buffer& b) { return b.surroundings_intact(); });
  }

  std::vector<std::vector<std::byte>> snapshot() const {
    std::vector<std::vector<std::byte>> copy;
    for (const Buffer& buffer : buffers_) copy.emplace_back(buffer.bytes().begin(), buffer.bytes().end());
    return copy;
  }

  void check(octavo_status status, const std::vector<std::vector<std::byte>>& before, const char* what,
             const std::string& message = octavo_last_error()) {
    ASSERT_TRUE(intact()) << what << ": wrote outside a buffer";
    ASSERT_LE(status, 3u);
    if (status == 0) {
      ++accepted;
    } else {
      ASSERT_NE(message, "");
      ASSERT_EQ(snapshot(), before) << what << ": failed after writing, " << message;
    }
  }

  // Sizes and pointers of one tensor; false: they would take too much memory.
  bool tensor(octavo_engine_tensor& t, uint32_t algorithm, uint32_t switches) {
    t.struct_size = size_field(sizeof t);
    t.group = random_.chance(60) ? enumerator(2) : 0;
    t.param_dtype = enumerator(3);
    t.store = t.param_dtype == 1 || random_.chance(10) ? enumerator(4) : 0;
    t.format = enumerator(kFormats);
    shape(t.numel, t.ndim, t.shape);
    t.block_size = t.format < 2 && !random_.chance(10) ? 0 : block_size();
    t.whole_numel = random_.chance(20) ? wild_integer() : 0;
    t.id = random_.bits();
    t.offset = random_.chance(4) ? wild_integer() : 0;
    t.param_device_kind = random_.chance(80) ? enumerator(3) : 0;
    t.state_device_index = random_.chance(80) ? 1 : 0;
    t.step_on_device = random_.chance(8) ? 1 : 0;
    t.known_steps = random_.chance(8) ? wild_integer() : -1;
    octavo_tensor_spec spec{};
    spec.struct_size = sizeof spec;
    spec.param_dtype = t.param_dtype;
    spec.store = t.store;
    spec.format = t.format;
    spec.ndim = t.ndim;
    spec.numel = t.numel;
    spec.block_size = t.block_size;
    std::copy(std::begin(t.shape), std::end(t.shape), spec.shape);
    octavo_tensor_layout layout{};
    layout.struct_size = sizeof layout;
    if (octavo_layout(algorithm, switches, &spec, &layout) != 0) layout = {};  // set must refuse it too
    if (t.numel > kRoom / 8) return false;
    const std::int64_t numel = std::clamp<std::int64_t>(t.numel, 0, kRoom);
    for (int slot = 0; slot < 3; ++slot) {
      if (layout.codes_bytes[slot] > kRoom || 4 * layout.scales[slot] > kRoom) return false;
      t.codes[slot] = pointer(layout.codes_bytes[slot], t.format == 0 ? 4 : t.format == 1 ? 2 : 1);
      t.scales[slot] = static_cast<float*>(pointer(4 * layout.scales[slot], 4));
    }
    t.param = pointer(numel * (t.param_dtype == 0 ? 4 : 2), t.param_dtype == 0 ? 4 : 2);
    t.residual = pointer(layout.residual_bytes, t.store == 3 ? 2 : 1);
    t.step = static_cast<int64_t*>(pointer(8, 8));
    const std::int64_t steps =
        random_.chance(10) ? wild_integer() : static_cast<int64_t>(random_.below(1000));
    std::memcpy(buffers_.back().data(), &steps, 8);
    return true;
  }

  octavo_step_args options() {
    octavo_step_args args{};
    args.struct_size = sizeof args;
    if (octavo_step_args_init(&args) != 0) ADD_FAILURE() << octavo_last_error();
    args.struct_size = size_field(sizeof args);
    args.nesterov = random_.chance(4) ? 1 : 0;
    args.maximize = enumerator(2);
    args.decay = enumerator(3);
    args.seed = random_.bits();
    args.lr = number(1e-3);
    args.beta1 = number(0.9);
    args.beta2 = number(0.999);
    args.eps = number(1e-8);
    args.weight_decay = number(0.01);
    args.momentum = random_.chance(4) ? number(0.0) : number(0.9);
    args.dampening = number(0.0);
    for (double& own : args.own) own = random_.chance(3) ? 0.0 : number(0.5);
    args.clip_grad_norm = number(random_.chance(4) ? 1.0 : 0.0);
    args.scalar_lr = random_.chance(4) ? static_cast<float*>(pointer(4, 4)) : nullptr;
    return args;
  }

  void engine() {
    forget();
    const uint32_t algorithm = enumerator(static_cast<std::uint64_t>(octavo_algorithm_count()));
    const uint32_t switches = random_.chance(4) ? enumerator(4) : 0;
    octavo_engine* made = nullptr;
    if (octavo_engine_create(algorithm, &made) != 0) return;
    const std::unique_ptr<octavo_engine, decltype(&octavo_engine_destroy)> owner(made, octavo_engine_destroy);
    const auto call = [&](const char* what, auto function) {
      const auto before = snapshot();
      const octavo_status status = function();
      check(status, before, what);
      return status == 0;
    };
    const octavo_step_args group = options();
    const uint32_t lr_device = random_.chance(60) ? enumerator(3) : 0;
    if (!call("set_group", [&] { return octavo_engine_set_group(made, 0, switches, &group, lr_device, 0); }))
      return;

    std::vector<octavo_engine_tensor> tensors(random_.below(4));
    std::vector<uint32_t> handles;
    std::vector<const void*> grads;
    std::vector<uint8_t> dtypes;
    for (octavo_engine_tensor& t : tensors) {
      if (!tensor(t, algorithm, switches)) return;
      handles.push_back(random_.chance(30) ? enumerator(3) : static_cast<uint32_t>(handles.size()));
      dtypes.push_back(static_cast<uint8_t>(enumerator(3)));
      const std::int64_t unit = dtypes.back() == 0 ? 4 : 2;
      grads.push_back(pointer(unit * std::clamp<std::int64_t>(t.numel, 0, kRoom), unit));
      if (dtypes.back() == t.param_dtype && random_.chance(20)) grads.back() = t.param;  // refused, or empty
    }
    const auto count = static_cast<std::int64_t>(tensors.size());
    if (!call("set", [&] { return octavo_engine_set(made, handles.data(), tensors.data(), count); })) {
      ASSERT_LT(octavo_engine_failed_tensor(made), std::int64_t{1} << 32);
      return;
    }

    octavo_engine_plan plan{};
    plan.struct_size = size_field(sizeof plan);
    const uint32_t with_norm = random_.chance(2) ? 1 : 0;
    if (!call("begin", [&] {
          return octavo_engine_begin(made, handles.data(), grads.data(), dtypes.data(), count, with_norm,
                                     random_.chance(3) ? nullptr : &plan);
        }))
      return;
    const std::int64_t needed = octavo_engine_workspace_bytes(made, 0, 0);
    ASSERT_GE(needed, 0);
    if (needed > kRoom) return;

    octavo_engine_device device{};
    device.struct_size = size_field(sizeof device);
    device.device_kind = random_.chance(80) ? enumerator(3) : 0;
    device.workspace = pointer(needed, 16);
    device.workspace_bytes = random_.chance(30) ? wild_integer() % (needed + 1) : needed;
    device.stream = random_.chance(60) ? &device : nullptr;  // refused: the tensors are on the CPU
    const auto scalar = [&](std::int64_t bytes, std::int64_t unit) {
      return random_.chance(4) ? pointer(bytes, unit) : nullptr;
    };
    device.loss_scale = static_cast<float*>(scalar(4, 4));
    device.found_inf = static_cast<float*>(scalar(4, 4));
    device.norm = static_cast<octavo_device_norm*>(with_norm != 0 ? pointer(sizeof(octavo_device_norm), 8)
                                                                  : scalar(sizeof(octavo_device_norm), 8));
    device.report = static_cast<octavo_device_report*>(scalar(sizeof(octavo_device_report), 8));
    octavo_engine_args args{};
    args.struct_size = size_field(sizeof args);
    args.skip_nonfinite = enumerator(2);
    args.threads =
        random_.chance(30) ? static_cast<int32_t>(random_.bits()) : static_cast<int32_t>(random_.below(4));
    args.defer = random_.chance(10) ? 1 : 0;
    args.grad_factor = number(1.0);
    args.devices = &device;
    args.device_count = random_.chance(60) ? 0 : 1;
    octavo_engine_norm_part part{};
    part.struct_size = size_field(sizeof part);
    part.part = random_.chance(60) ? enumerator(2) : 0;
    part.out = device.norm;
    if (with_norm != 0)
      call("norm", [&] { return octavo_engine_norm(made, &args, &part, 1, nullptr, nullptr); });
    if (testing::Test::HasFatalFailure()) return;
    octavo_step_report report{};
    report.struct_size = size_field(sizeof report);
    octavo_step_report* const out = random_.chance(3) ? nullptr : &report;
    if (!random_.chance(4)) {
      call("step", [&] { return octavo_engine_step(made, &args, out); });
      return;
    }
    auto* const own = static_cast<octavo_device_norm*>(scalar(2 * sizeof(octavo_device_norm), 8));
    if (call("ready", [&] { return octavo_engine_ready(made, &args, own, nullptr, nullptr, out); })) {
      const std::int64_t more = octavo_engine_workspace_bytes(made, 0, 0);
      ASSERT_GE(more, 0);
      if (more > kRoom) return;
      device.workspace = pointer(more, 16);
      device.workspace_bytes = more;
      call("finish", [&] {
        return octavo_engine_finish(made, &args, &part, own == nullptr ? 0 : 1, nullptr, nullptr);
      });
    }
  }

  void moment() {
    forget();
    octavo_moment_spec spec{};
    spec.struct_size = size_field(sizeof spec);
    spec.moment = enumerator(2);
    spec.format = enumerator(kFormats);
    shape(spec.numel, spec.ndim, spec.shape);
    spec.block_size = spec.format < 2 && !random_.chance(10) ? 0 : block_size();
    octavo_moment_spec other = spec;
    other.format = enumerator(kFormats);
    other.block_size = other.format < 2 ? 0 : block_size();
    int64_t codes_bytes = 0, scales = 0, other_codes = 0, other_scales = 0;
    if (octavo_moment_layout(&spec, &codes_bytes, &scales) != 0) codes_bytes = scales = 0;
    if (octavo_moment_layout(&other, &other_codes, &other_scales) != 0) other_codes = other_scales = 0;
    if (spec.numel > kRoom / 8 || std::max({codes_bytes, 4 * scales, other_codes, 4 * other_scales}) > kRoom)
      return;
    const auto unit = [](uint32_t format) { return format == 0 ? 4 : format == 1 ? 2 : 1; };
    auto* values = static_cast<float*>(pointer(4 * std::max<std::int64_t>(spec.numel, 0), 4));
    void* codes = pointer(codes_bytes, unit(spec.format));
    auto* scale = static_cast<float*>(pointer(4 * scales, 4));
    void* to_codes = pointer(other_codes, unit(other.format));
    auto* to_scale = static_cast<float*>(pointer(4 * other_scales, 4));
    const auto call = [&](const char* what, auto function) {
      const auto before = snapshot();
      check(function(), before, what);
    };
    call("decode", [&] { return octavo_decode(&spec, codes, scale, values); });
    call("encode", [&] { return octavo_encode(&spec, values, codes, scale); });
    const auto bytes = [](void* data, std::int64_t size) {
      return std::span(static_cast<std::byte*>(data), data == nullptr ? 0 : static_cast<std::size_t>(size));
    };
    const auto floats = [](float* data, std::int64_t size) {
      return std::span(data, data == nullptr ? 0 : static_cast<std::size_t>(size));
    };
    const auto cpp_call = [&](const char* what, auto function) {
      const auto before = snapshot();
      const octavo::Status status = function();
      check(static_cast<octavo_status>(status.code()), before, what, status.message());
    };
    cpp_call("convert", [&] {
      return octavo::convert(cpp(spec), bytes(codes, codes_bytes), floats(scale, scales), cpp(other),
                             bytes(to_codes, other_codes), floats(to_scale, other_scales));
    });
    cpp_call("inspect", [&] {
      const std::int64_t known = random_.chance(2) ? 0 : std::max<std::int64_t>(spec.numel, 0);
      return octavo::inspect(cpp(spec), bytes(codes, codes_bytes), floats(scale, scales),
                             floats(values, known))
          .status();
    });
  }

  static octavo::MomentSpec cpp(const octavo_moment_spec& c) {
    octavo::MomentSpec spec;
    spec.moment = static_cast<octavo::Moment>(c.moment);
    spec.format = static_cast<octavo::StateFormat>(c.format);
    spec.block_size = c.block_size;
    spec.numel = c.numel;
    std::copy(std::begin(c.shape), std::end(c.shape), spec.shape.begin());
    spec.ndim = c.ndim;
    return spec;
  }

  // Sizes and options of a transducer loss, with labels and lengths of which most are right.
  octavo_transducer_args transducer_args() {
    octavo_transducer_args args{};
    const auto size = [&](std::uint64_t most) {
      return random_.chance(60) ? wild_integer() : 1 + static_cast<std::int64_t>(random_.below(most));
    };
    args.struct_size = size_field(sizeof args);
    args.dtype = enumerator(3);
    args.kind = enumerator(2);
    args.reduction = enumerator(5);
    args.batch = size(3);
    args.frames = size(5);
    args.positions = size(4);
    args.tokens = size(6);
    args.blank = random_.chance(20) ? wild_integer() : args.tokens - 1;
    args.sigma = args.kind == 0 ? number(0.05) : number(0.0);
    args.omega = args.kind == 0 ? number(0.5) : number(0.0);
    args.seed = random_.bits();
    args.threads = random_.chance(30) ? -1 : 1;
    const auto indices = [&](std::int64_t count, auto value) {
      auto* out = static_cast<int64_t*>(pointer(8 * count, 8));
      std::byte* const at = buffers_.back().data();
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t x = random_.chance(90) ? wild_integer() : value(i);
        std::memcpy(at + 8 * i, &x, 8);
      }
      return out;
    };
    const auto below = [&](std::int64_t limit) {
      return limit > 0 ? static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(limit))) : 0;
    };
    args.duration_count = args.kind == 0 && !random_.chance(30) ? 2 : below(4);
    args.durations = indices(args.duration_count, [](std::int64_t i) { return i; });
    if (small(args.batch) && small(args.positions) && small(args.frames) && small(args.tokens)) {
      args.targets =
          indices(args.batch * (args.positions - 1), [&](std::int64_t) { return below(args.tokens - 1); });
      args.logit_lengths = indices(args.batch, [&](std::int64_t) { return 1 + below(args.frames); });
      args.target_lengths = indices(args.batch, [&](std::int64_t) { return below(args.positions); });
    }
    return args;
  }
  static bool small(std::int64_t size) { return size >= 0 && size < 40; }

  void transducer() {
    forget();
    octavo_transducer_args args = transducer_args();
    const bool known = small(args.batch) && small(args.positions) && small(args.frames) && small(args.tokens);
    const std::int64_t cells = known ? args.batch * args.frames * args.positions : 0;
    const std::int64_t each = args.dtype == 0 ? 4 : 2;
    const auto workspace = [&](std::int64_t bytes) {
      args.workspace_bytes = bytes;
      args.workspace = pointer(bytes, 16);
    };
    auto* losses = static_cast<float*>(pointer(4 * (known ? std::max<std::int64_t>(args.batch, 1) : 1), 4));
    const auto call = [&](const char* what, auto function) {
      const auto before = snapshot();
      const octavo_status status = function();
      check(status, before, what);
      return status == 0;
    };
    if (random_.chance(2)) {
      workspace(std::clamp<std::int64_t>(octavo_transducer_workspace_bytes(&args), 0, kRoom));
      args.token_logits = pointer(each * cells * args.tokens, each);
      args.duration_logits = pointer(each * cells * args.duration_count, each);
      octavo_transducer_grads grads{};
      grads.struct_size = size_field(sizeof grads);
      grads.grad_losses = losses;
      grads.token_grad = pointer(each * cells * args.tokens, each);
      grads.duration_grad = pointer(each * cells * args.duration_count, each);
      if (random_.chance(6)) grads.token_grad = const_cast<void*>(args.token_logits);
      if (random_.chance(20)) grads.token_strides[random_.below(3)] = -1;  // others need other memory
      if (call("transducer_loss", [&] { return octavo_transducer_loss(&args, losses); }))
        call("transducer_gradient", [&] { return octavo_transducer_gradient(&args, &grads); });
      return;
    }
    octavo_transducer_joint joint{};
    joint.struct_size = size_field(sizeof joint);
    joint.bias_dtype = random_.chance(2) ? args.dtype : enumerator(3);
    joint.hidden = random_.chance(40) ? wild_integer() : 1 + static_cast<std::int64_t>(random_.below(20));
    joint.dropout = number(0.25);
    joint.tile_cells = random_.chance(20) ? wild_integer() : static_cast<std::int64_t>(random_.below(9));
    int64_t bytes = 0, scratch = 0;
    if (octavo_transducer_joint_bytes(&args, &joint, &bytes, &scratch) != 0) bytes = scratch = 0;
    if (bytes > kRoom || scratch > kRoom || !known) return;
    const std::int64_t units = small(joint.hidden) ? joint.hidden : 0,
                       outputs = args.tokens + args.duration_count;
    const std::int64_t counts[] = {args.batch * args.frames * units, args.batch * args.positions * units,
                                   outputs * units, outputs};
    workspace(bytes);
    joint.scratch = pointer(scratch, 16);
    joint.scratch_bytes = scratch;
    joint.encoder = pointer(each * counts[0], each);
    joint.predictor = pointer(each * counts[1], each);
    joint.weight = pointer(each * counts[2], each);
    joint.bias = pointer((joint.bias_dtype == 0 ? 4 : 2) * counts[3], joint.bias_dtype == 0 ? 4 : 2);
    joint.samples = static_cast<const int64_t*>(pointer(8 * args.batch, 8));
    octavo_transducer_joint_grads grads{};
    grads.struct_size = size_field(sizeof grads);
    grads.grad_losses = losses;
    float** const places[] = {&grads.encoder, &grads.predictor, &grads.weight, &grads.bias};
    for (std::size_t i = 0; i < 4; ++i) *places[i] = static_cast<float*>(pointer(4 * counts[i], 4));
    if (call("joint_loss", [&] { return octavo_transducer_joint_loss(&args, &joint, losses); }))
      call("joint_gradient", [&] { return octavo_transducer_joint_gradient(&args, &joint, &grads); });
  }

  // A layer in FP8, with right sizes most of the time: casts of its operands, a matmul, and the end of a
  // step.
  void fp8() {
    forget();
    octavo_fp8_layer layer{};
    const auto size = [&](std::uint64_t most) {
      if (random_.chance(80)) return wild_integer();
      const auto sides = static_cast<std::int64_t>(random_.below(most));
      return random_.chance(40) ? 16 * sides + 7 : 16 * sides;
    };
    layer.struct_size = size_field(sizeof layer);
    layer.device_index = random_.chance(80) ? 1 : 0;
    layer.format = enumerator(3);
    layer.recipe = enumerator(4);
    layer.passes = enumerator(8);
    layer.groups = random_.chance(80) ? wild_integer() : static_cast<std::int64_t>(random_.below(4));
    layer.tokens = size(4);
    layer.inputs = size(4);
    layer.outputs = size(4);
    layer.one_input = static_cast<uint32_t>(random_.below(2));
    layer.one_output = static_cast<uint32_t>(random_.below(2));
    layer.transposed_weight = static_cast<uint32_t>(random_.below(2));
    for (uint32_t& dtype : layer.dtypes) dtype = enumerator(3);
    layer.history = random_.chance(20) ? wild_integer() : static_cast<std::int64_t>(1 + random_.below(5));
    layer.threads = random_.chance(30) ? -1 : 1;
    (void)octavo_fp8_why_not(&layer);
    const auto call = [&](const char* what, auto function) {
      const auto before = snapshot();
      check(function(), before, what);
    };
    octavo_fp8_sizes sizes{};
    sizes.struct_size = size_field(sizeof sizes);
    if (octavo_fp8_layer_sizes(&layer, &sizes) != 0) return;
    if (std::max({layer.groups, layer.tokens, layer.inputs, layer.outputs, layer.history}) > kRoom) return;
    const std::int64_t length = std::max<std::int64_t>(layer.history, 1);
    auto* const states = static_cast<float*>(pointer(4 * 3 * (2 + length), 4));
    octavo_fp8_run_args args{};
    args.struct_size = size_field(sizeof args);
    args.gather = static_cast<uint32_t>(random_.below(2));
    if (states != nullptr && reinterpret_cast<std::uintptr_t>(states) % 4 == 0) {
      for (std::int64_t i = 0; i < 3; ++i) {
        const float one = 1.0f;
        std::memcpy(states + i * (2 + length), &one, 4);
        std::memcpy(states + i * (2 + length) + 1, &one, 4);
      }
      args.states = states;
    }
    const auto unit = [&](std::size_t operand) { return std::int64_t{layer.dtypes[operand] == 0 ? 4 : 2}; };
    const std::int64_t groups = std::max<std::int64_t>(layer.groups, 1);
    const std::array<std::int64_t, 3> elements = {groups * layer.tokens * layer.inputs,
                                                  groups * layer.inputs * layer.outputs,
                                                  groups * layer.tokens * layer.outputs};
    for (std::size_t i = 0; i < 3; ++i) {
      if (sizes.codes[i] > kRoom || sizes.transposed[i] > kRoom) return;
      args.codes[i] = sizes.codes[i] > 0 ? pointer(sizes.codes[i], 4) : nullptr;
      args.transposed[i] = sizes.transposed[i] > 0 ? pointer(sizes.transposed[i], 4) : nullptr;
    }
    // One operand per call, because a call with several has written the first ones when a later one fails.
    for (std::size_t i = 0; i < 3; ++i) {
      octavo_fp8_run_args cast = args;
      cast.from[i] = pointer(unit(i) * elements[i], unit(i));
      if (random_.chance(4)) cast.bias_grad = static_cast<float*>(pointer(4 * layer.outputs, 4));
      call("fp8_run with a cast", [&] { return octavo_fp8_run(&layer, &cast); });
    }
    const std::size_t pass = random_.below(3), dtype_of = std::array<std::size_t, 3>{2, 0, 1}[pass];
    const int64_t* const size_of_result = std::array{sizes.y, sizes.dx, sizes.dw}[pass];
    if ((layer.passes >> pass & 1) != 0) {
      const std::int64_t bytes = unit(dtype_of) * size_of_result[0] * size_of_result[1] * size_of_result[2];
      if (bytes > kRoom) return;
      args.to[pass] = pointer(bytes, unit(dtype_of));
      call("fp8_run with a matmul", [&] { return octavo_fp8_run(&layer, &args); });
    }
    octavo_fp8_scale_args update{};
    update.struct_size = size_field(sizeof update);
    update.algo = enumerator(2);
    update.margin = static_cast<int32_t>(random_.below(18));
    update.states = states;
    update.tensors = random_.chance(20) ? -1 : 3;
    update.length = length;
    call("fp8_update_scales", [&] { return octavo_fp8_update_scales(&update); });
  }

  void names() {
    constexpr const char* kKinds[] = {"dtype",     "state",      "store", "optimizer",
                                      "reduction", "fp8_recipe", "",      "colour"};
    std::string text;
    for (std::uint64_t i = random_.below(12); i > 0; --i) text += static_cast<char>(1 + random_.below(255));
    uint32_t number = 0;
    (void)octavo_parse(kKinds[random_.below(std::size(kKinds))], text.c_str(), &number);
    (void)octavo_force_implementation((text + "?").c_str());
    (void)octavo_last_error();
  }

  Random random_;
  std::vector<Buffer> buffers_;
};

TEST(Fuzz, NoCallOverValidMemoryMisbehaves) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds());
  std::int64_t calls = 0;
  std::int64_t accepted = 0;
  while (std::chrono::steady_clock::now() < end) {
    // Every round has its own seed, so that a failure is repeated by OCTAVO_FUZZ_SEED alone.
    const std::uint64_t round = seed() + static_cast<std::uint64_t>(calls / 200);
    const std::vector<std::string> implementations = supported_implementations();
    const ForcedImplementation forced(implementations[round % implementations.size()]);
    Fuzzer fuzzer(round * 0x10001u);
    for (int i = 0; i < 200; ++i, ++calls) {
      fuzzer.run_one();
      if (HasFatalFailure()) FAIL() << "again with OCTAVO_FUZZ_SEED=" << round;
    }
    accepted += fuzzer.accepted;
  }
  RecordProperty("calls", std::to_string(calls));
  RecordProperty("accepted", std::to_string(accepted));
  std::printf("%lld rounds, %lld calls accepted\n", static_cast<long long>(calls),
              static_cast<long long>(accepted));
  EXPECT_GT(accepted, calls / 10) << "too few calls are valid for the fuzz to mean something";
}

}  // namespace
}  // namespace test
