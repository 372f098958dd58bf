// Random calls of the C ABI over valid memory: wrong enums, sizes, shapes, pointers and numbers among right
// ones. No call may crash, write outside its buffers, or change a buffer and then fail. Ten seconds by
// default; OCTAVO_FUZZ_SECONDS=600 and OCTAVO_FUZZ_SEED=n run it longer or again (build it with the asan
// preset for that).
// SPDX-License-Identifier: MIT
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"

#include <octavo/octavo.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

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
        return moment();
      case 1:
        return norm();
      case 2:
        return names();
      case 3:
      case 4:
        return transducer();
      case 5:
        return fp8();
      default:
        return group();
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

  // A buffer of exactly `bytes` with random contents; now and then its pointer is null or off by one byte.
  void* pointer(std::int64_t bytes, std::int64_t unit) {
    buffers_.emplace_back(std::clamp<std::int64_t>(bytes, 0, kRoom),
                          unit * static_cast<std::int64_t>(random_.below(4)));
    Buffer& buffer = buffers_.back();
    for (std::int64_t i = 0; i < buffer.size(); ++i)
      buffer.data()[i] = static_cast<std::byte>(random_.bits());
    if (random_.chance(60)) return nullptr;
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

  void check(octavo_status status, const std::vector<std::vector<std::byte>>& before, const char* what) {
    ASSERT_TRUE(intact()) << what << ": wrote outside a buffer";
    ASSERT_LE(status, 3u);
    if (status == 0) {
      ++accepted;
    } else {
      ASSERT_STRNE(octavo_last_error(), "");
      ASSERT_EQ(snapshot(), before) << what << ": failed after writing, " << octavo_last_error();
    }
  }

  void group() {
    forget();
    octavo_group_config config{};
    config.struct_size = size_field(sizeof config);
    config.algorithm = enumerator(static_cast<std::uint64_t>(octavo_algorithm_count()));
    config.amsgrad = config.algorithm < 2 || random_.chance(10) ? enumerator(2) : 0;
    config.momentum = enumerator(2);
    config.switches = random_.chance(4) ? enumerator(4) : 0;
    std::vector<octavo_tensor> tensors(random_.below(4));
    for (octavo_tensor& t : tensors) {
      t.spec.struct_size = size_field(sizeof t.spec);
      t.spec.param_dtype = enumerator(3);
      t.spec.grad_dtype = enumerator(3);
      t.spec.store = t.spec.param_dtype == 1 || random_.chance(10) ? enumerator(4) : 0;
      t.spec.format = enumerator(kFormats);
      shape(t.spec.numel, t.spec.ndim, t.spec.shape);
      t.spec.block_size = t.spec.format < 2 && !random_.chance(10) ? 0 : block_size();
      t.id = random_.bits();
      t.offset = random_.chance(4) ? wild_integer() : 0;
      octavo_tensor_layout layout{};
      layout.struct_size = sizeof layout;
      if (octavo_layout(&config, &t.spec, &layout) != 0) layout = {};  // create must refuse it too
      const std::int64_t numel = std::clamp<std::int64_t>(t.spec.numel, 0, kRoom);
      if (t.spec.numel > kRoom / 8 || layout.workspace_bytes > kRoom) return;
      for (int slot = 0; slot < 3; ++slot) {
        if (layout.codes_bytes[slot] > kRoom || 4 * layout.scales[slot] > kRoom) return;
        t.codes[slot] = pointer(layout.codes_bytes[slot], t.spec.format == 0   ? 4
                                                          : t.spec.format == 1 ? 2
                                                                               : 1);
        t.scales[slot] = static_cast<float*>(pointer(4 * layout.scales[slot], 4));
      }
      t.param = pointer(numel * (t.spec.param_dtype == 0 ? 4 : 2), t.spec.param_dtype == 0 ? 4 : 2);
      t.grad = pointer(numel * (t.spec.grad_dtype == 0 ? 4 : 2), t.spec.grad_dtype == 0 ? 4 : 2);
      if (t.spec.param_dtype == t.spec.grad_dtype && random_.chance(20))
        t.grad = t.param;  // refused, or empty
      t.residual = pointer(layout.residual_bytes, t.spec.store == 3 ? 2 : 1);
    }
    octavo_group* made = nullptr;
    auto before = snapshot();
    const octavo_status status =
        octavo_group_create(&config, tensors.data(), static_cast<std::int64_t>(tensors.size()), &made);
    check(status, before, "create");
    if (testing::Test::HasFatalFailure() || status != 0) return;
    octavo_step_args args;
    octavo_step_args_init(&args);
    args.struct_size = size_field(sizeof args);
    args.guard = enumerator(2);
    args.threads =
        random_.chance(30) ? static_cast<int32_t>(random_.bits()) : static_cast<int32_t>(random_.below(4));
    args.nesterov = random_.chance(4) ? 1 : 0;
    args.maximize = enumerator(2);
    args.decay = enumerator(3);
    args.step = random_.chance(10) ? wild_integer() : 1 + static_cast<std::int64_t>(random_.below(1000));
    args.seed = random_.bits();
    args.lr = number(1e-3);
    args.beta1 = number(0.9);
    args.beta2 = number(0.999);
    args.eps = number(1e-8);
    args.weight_decay = number(0.01);
    args.momentum = config.algorithm == 2 && config.momentum == 0 ? number(0.0) : number(0.9);
    args.dampening = number(0.0);
    for (double& own : args.own) own = random_.chance(3) ? 0.0 : number(0.5);
    args.grad_factor = number(1.0);
    const auto scalar = [&](std::int64_t bytes, std::int64_t unit) {
      return random_.chance(4) ? pointer(bytes, unit) : nullptr;
    };
    args.scalar_lr = static_cast<float*>(scalar(4, 4));
    args.scalar_step = static_cast<int64_t*>(scalar(8, 8));
    args.scalar_loss_scale = static_cast<float*>(scalar(4, 4));
    args.scalar_found_inf = static_cast<float*>(scalar(4, 4));
    args.scalar_norm = static_cast<octavo_device_norm*>(scalar(sizeof(octavo_device_norm), 8));
    args.scalar_report = static_cast<octavo_device_report*>(scalar(sizeof(octavo_device_report), 8));
    args.max_norm = number(args.scalar_norm != nullptr ? 1.0 : 0.0);
    args.stream = random_.chance(60) ? &args : nullptr;  // refused: the group is on the CPU
    const std::int64_t needed = octavo_group_workspace_bytes(made);
    buffers_.emplace_back(needed);
    args.workspace = random_.chance(30) ? nullptr : buffers_.back().data();
    args.workspace_bytes = random_.chance(30) ? wild_integer() % (needed + 1) : needed;
    octavo_step_report report{};
    report.struct_size = size_field(sizeof report);
    before = snapshot();
    const octavo_status stepped = octavo_group_step(made, &args, random_.chance(3) ? nullptr : &report);
    check(stepped, before, "step");
    octavo_group_destroy(made);
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
    call("convert", [&] { return octavo_convert(&spec, codes, scale, &other, to_codes, to_scale); });
    octavo_moment_report report{};
    report.struct_size = size_field(sizeof report);
    call("inspect",
         [&] { return octavo_inspect(&spec, codes, scale, random_.chance(2) ? nullptr : values, &report); });
  }

  void norm() {
    forget();
    std::vector<octavo_grad_view> views(random_.below(4));
    for (octavo_grad_view& view : views) {
      view.dtype = enumerator(3);
      view.numel = random_.chance(20) ? wild_integer() : static_cast<std::int64_t>(random_.below(3000));
      if (view.numel > kRoom / 8) return;
      const std::int64_t unit = view.dtype == 0 ? 4 : 2;
      view.data = pointer(unit * std::max<std::int64_t>(view.numel, 0), unit);
    }
    const auto count = static_cast<std::int64_t>(views.size());
    const std::int64_t needed = std::max<std::int64_t>(0, octavo_grad_norm_workspace(views.data(), count));
    std::vector<double> workspace(static_cast<std::size_t>(needed) + 1);
    octavo_grad_norm_result result{};
    result.struct_size = size_field(sizeof result);
    const auto before = snapshot();
    check(octavo_grad_norm(views.data(), count, workspace.data(),
                           random_.chance(9) ? wild_integer() % (needed + 1) : needed,
                           static_cast<int32_t>(random_.below(3)), &result),
          before, "grad_norm");
    octavo_norm* made = nullptr;
    if (octavo_norm_create(0, random_.chance(60) ? 1 : 0, views.data(), count, &made) != 0) return;
    auto* out = static_cast<octavo_device_norm*>(pointer(sizeof(octavo_device_norm), 8));
    auto* room = pointer(octavo_norm_workspace_bytes(made), 16);
    const auto prepared = snapshot();
    check(octavo_norm_run(made, room, octavo_norm_workspace_bytes(made), out, nullptr, 1), prepared,
          "norm_run");
    octavo_norm_destroy(made);
    (void)octavo_clip_factor(number(1.0), number(1.0), number(1.0));
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
    const std::int64_t length = layer.history >= 0 && layer.history < 6 ? layer.history : 5;
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
    for (std::size_t i = 0; i < 3;
         ++i) {  // a call with several writes the first ones before a later one fails
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
