// Implements `octavo bench offload`: times iterations of one model with its states on the device, in host
// memory and streamed, and checks that the final weights are bitwise equal.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/algorithm.h"
#include "benchmarks/engine/commands.h"
#include "benchmarks/engine/data.h"
#include "benchmarks/engine/device.h"
#include "benchmarks/engine/options.h"
#include "benchmarks/engine/shapes.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/parse.h"
#include "cli/table.h"

#include <octavo/backend.h>
#include <octavo/offload.h>
#include <octavo/engine.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace octavo::cli {
namespace {

constexpr std::int64_t kAlign = 512;  // the alignment of frameworks' allocators
// The bytes that one copy of a forward or backward pass moves.
constexpr std::int64_t kPassOnCpu = 1 << 20, kPassOnGpu = 1 << 26;
constexpr double kMaxNorm = 1.0;

constexpr std::array kResidences = {std::pair{Residence::device, "device"},
                                    std::pair{Residence::host, "host"},
                                    std::pair{Residence::stream, "stream"}};

// The optimizer that benchmarks run by default.
Algorithm usual_algorithm() { return take(parse_algorithm(kDefaultOptimizer)); }

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
std::int64_t pass_bytes(const BenchDevice& device) { return device.on_gpu() ? kPassOnGpu : kPassOnCpu; }

void copy_once(BenchDevice& device, const Buffer& activations) {
  const std::int64_t half = activations.size / 2;
  device.copy(CopyWay::streaming, activations.data() + half, activations.data(), half);
}

struct OffloadSpec {
  Residence residence = Residence::device;
  StateFormat state = StateFormat::int8;
  DType dtype = DType::bf16;  // of weights and gradients
  std::int64_t layers = 1;
  std::int64_t numel = 1;       // of each layer
  bool take_gradients = false;  // offload gradients to host memory in the backward pass
  bool clip = false;            // by the norm of all gradients
  int copies = 1;               // for the forward pass of a layer; the backward pass makes twice this number
  int threads = 1;
};

std::string residence_name(Residence residence) {
  return std::ranges::find(kResidences, residence, [](const auto& each) { return each.first; })->second;
}

Residence parse_residence(std::string_view text) {
  for (const auto& [residence, known] : kResidences)
    if (text == known) return residence;
  throw Failure(kExitUsage, "--residence: got '" + std::string(text) + "', expected device, host or stream");
}

// Returns the number of copies that take about `ms` milliseconds on the device.
int copies_for(BenchDevice& device, double ms) {
  const Buffer activations = device.allocate(2 * pass_bytes(device));
  std::vector<double> times = device.time_ms(11, [&] { copy_once(device, activations); });
  std::ranges::nth_element(times, times.begin() + 5);
  return std::max(1, static_cast<int>(std::lround(ms / std::max(times[5], 1e-3))));
}

// The model that is trained: equal layers, with optimizer states on the device or in host memory. A layer's
// forward and backward passes are copies on the device, repeated until they take the requested time. Its
// gradient is made on the device. The library's engine updates its weights.
class OffloadModel {
 public:
  // The device must outlive the model.
  OffloadModel(BenchDevice& device, const OffloadSpec& spec);
  ~OffloadModel();
  OffloadModel(const OffloadModel&) = delete;
  OffloadModel& operator=(const OffloadModel&) = delete;

  // Runs the forward and backward passes and the step. The next forward pass waits for the step layer by
  // layer.
  void iterate();
  // Runs the forward and backward passes without a step.
  void pass();
  // Waits until all work is complete.
  void finish();
  // Runs iterations and records their forward and backward passes in the trace, layer by layer. Waits until
  // all work is complete.
  void trace(int iterations);

  // Returns a checksum of all weights. REQUIRES: finish() has been called.
  [[nodiscard]] std::uint64_t checksum() const;
  [[nodiscard]] std::int64_t device_state_bytes() const { return device_states_.size; }
  // Returns the host memory of the states and of the engine (copies of weights and gradients).
  [[nodiscard]] std::int64_t host_bytes() const { return host_states_.bytes() + engine_.host_bytes(); }
  // Returns why host memory is not pinned. Empty if it is pinned, or if there is no GPU to pin it for.
  [[nodiscard]] std::string why_not_pinned() const;

 private:
  void place_states(const TensorSpec& layer);
  void forward(bool wait);
  void backward(bool take);
  void step();
  void work(int copies, const char* pass, std::size_t layer);
  [[nodiscard]] bool takes() const { return spec_.take_gradients && spec_.residence != Residence::device; }
  // Grows `buffer`, which is device memory for the engine, to at least `bytes`. Waits until the replaced
  // memory is no longer in use.
  void grow(Buffer& buffer, std::int64_t bytes);
  void wait_for_weights(Span<std::uint32_t> layers) {
    engine_.wait(layers, Engine::Wait::weights, kind(), index(), device_.stream());
  }
  [[nodiscard]] std::uint32_t kind() const { return static_cast<std::uint32_t>(device_.device().kind); }
  [[nodiscard]] std::int32_t index() const { return device_.device().index; }

  BenchDevice& device_;
  OffloadSpec spec_;
  Engine engine_;
  std::vector<std::uint32_t> handles_;
  std::vector<octavo_engine_tensor> tensors_;
  std::vector<std::int64_t> counts_;
  Buffer params_, grads_, activations_, device_states_, workspace_, staging_, norm_;
  HostMemory host_states_;
  std::vector<void*> grads_at_;
  std::uint64_t passes_ = 0;
  bool traced_ = false;
  std::vector<std::string> labels_;  // one per pair of device marks
};

OffloadModel::OffloadModel(BenchDevice& device, const OffloadSpec& spec)
    : device_(device),
      spec_(spec),
      engine_(static_cast<std::uint32_t>(usual_algorithm())),
      handles_(static_cast<std::size_t>(spec.layers)),
      counts_(handles_.size()) {
  std::iota(handles_.begin(), handles_.end(), 0U);
  const std::int64_t each = rounded_up(spec.numel * dtype_bytes(spec.dtype));
  params_ = device.allocate(each * spec.layers);
  grads_ = device.allocate(each * spec.layers);
  norm_ = device.allocate(sizeof(octavo_device_norm));
  activations_ = device.allocate(2 * pass_bytes(device));
  const TensorSpec layer{.numel = spec.numel,
                         .param_dtype = spec.dtype,
                         .grad_dtype = spec.dtype,
                         .format = take(format_for(spec.state, spec.numel))};
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    octavo_engine_tensor& tensor = tensors_.emplace_back(engine_tensor(layer, device.device()));
    tensor.id = i;
    tensor.param = params_.data() + each * static_cast<std::int64_t>(i);
    tensor.residence = static_cast<std::uint32_t>(spec.residence);
    tensor.step = &counts_[i];
    grads_at_.push_back(grads_.data() + each * static_cast<std::int64_t>(i));
    device.fill(tensor.param, spec.dtype, stream_of(i, 0), kWeightShift, spec.numel);
  }
  place_states(layer);
  octavo_step_args options = usual_options({.algorithm = usual_algorithm()});
  options.clip_grad_norm = spec.clip ? kMaxNorm : 0.0;
  engine_.set_group(0, 0, options);
  engine_.set(handles_, tensors_);
  if (spec.residence != Residence::device) engine_.set_order(handles_);
}

OffloadModel::~OffloadModel() {
  (void)octavo_engine_synchronize(engine_.get());  // the buffers are freed after this
}

// Places all states in one slab, in the order of the tensors, so that neighbors are copied together.
void OffloadModel::place_states(const TensorSpec& layer) {
  const GroupConfig config{.algorithm = usual_algorithm(), .device = device_.device()};
  const TensorLayout needs = take(layout(config, layer));
  std::int64_t each = 0;
  for (const SlotLayout& slot : needs.slot)
    each += rounded_up(slot.codes_bytes) + rounded_up(4 * slot.scales);
  std::byte* at = nullptr;
  if (spec_.residence == Residence::device) {
    device_states_ = device_.allocate(each * spec_.layers);
    at = device_states_.data();
  } else {
    host_states_ = take(HostMemory::allocate(each * spec_.layers, device_.on_gpu()));
    at = host_states_.data();
  }
  for (octavo_engine_tensor& tensor : tensors_) {
    if (spec_.residence != Residence::device) tensor.state_device_kind = 0, tensor.state_device_index = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(needs.slots); ++i) {
      tensor.codes[i] = at;
      at += rounded_up(needs.slot[i].codes_bytes);
      if (needs.slot[i].scales == 0) continue;
      tensor.scales[i] = reinterpret_cast<float*>(at);
      at += rounded_up(4 * needs.slot[i].scales);
    }
  }
}

void OffloadModel::work(int copies, const char* pass, std::size_t layer) {
  if (traced_) {
    labels_.push_back(pass + std::to_string(layer));
    device_.mark();
  }
  for (int i = 0; i < copies; ++i) copy_once(device_, activations_);
  if (traced_) device_.mark();
}

void OffloadModel::forward(bool wait) {
  for (const std::uint32_t& layer : handles_) {
    if (wait) wait_for_weights(Span(&layer, 1));
    work(spec_.copies, "forward ", layer);
  }
}

void OffloadModel::backward(bool take) {
  ++passes_;
  for (std::size_t i = handles_.size(); i-- > 0;) {
    work(2 * spec_.copies, "backward ", i);
    // forward() waited for this layer's weight, so the step has already read its last gradient.
    device_.fill(grads_at_[i], spec_.dtype, stream_of(i, passes_), kGradShift, spec_.numel);
    if (take) {
      const void* const grad = grads_at_[i];
      const auto dtype = static_cast<std::uint8_t>(spec_.dtype);
      engine_.take(Span(&handles_[i], 1), Span(&grad, 1), Span(&dtype, 1), kind(), index(), device_.stream());
    }
  }
}

void OffloadModel::grow(Buffer& buffer, std::int64_t bytes) {
  if (buffer.size >= bytes) return;
  engine_.synchronize();
  device_.wait();
  buffer = device_.allocate(bytes);
}

void OffloadModel::step() {
  std::vector<const void*> grads(grads_at_.begin(), grads_at_.end());
  if (takes()) std::ranges::fill(grads, nullptr);
  const std::vector<std::uint8_t> dtypes(grads.size(), static_cast<std::uint8_t>(spec_.dtype));
  engine_.begin(handles_, grads, dtypes, spec_.clip);
  grow(workspace_, engine_.workspace_bytes(kind(), index()));
  grow(staging_, engine_.staging_bytes(kind(), index()));
  auto here = make<octavo_engine_device>();
  here.device_kind = kind();
  here.device_index = index();
  here.stream = device_.stream();
  here.workspace = workspace_.data();
  here.workspace_bytes = workspace_.size;
  here.staging = staging_.data();
  here.staging_bytes = staging_.size;
  here.norm = reinterpret_cast<octavo_device_norm*>(norm_.data());
  auto args = make<octavo_engine_args>();
  args.threads = spec_.threads;
  args.defer = spec_.residence != Residence::device ? 1 : 0;
  args.devices = &here;
  args.device_count = 1;
  auto part = make<octavo_engine_norm_part>();
  part.device_kind = kind();
  part.device_index = index();
  part.out = here.norm;
  if (spec_.clip) engine_.norm(args, Span(&part, 1));
  engine_.step(args);
}

void OffloadModel::iterate() {
  forward(spec_.residence != Residence::device);
  backward(takes());
  step();
}

void OffloadModel::pass() {
  forward(false);
  backward(false);
}

void OffloadModel::finish() {
  wait_for_weights({});
  engine_.synchronize();
  device_.wait();
}

void OffloadModel::trace(int iterations) {
  traced_ = true;
  for (int i = 0; i < iterations; ++i) iterate();
  traced_ = false;
  finish();
  const std::vector<double> at = device_.marks_us();
  for (std::size_t i = 0; i < labels_.size(); ++i)
    note_offload("model", labels_[i], at[2 * i], at[2 * i + 1]);
  labels_.clear();
}

std::uint64_t OffloadModel::checksum() const {
  std::uint64_t hash = kHashStart;
  for (const octavo_engine_tensor& tensor : tensors_)
    hash = fnv1a(hash, device_.read(tensor.param, spec_.numel * dtype_bytes(spec_.dtype)));
  return hash;
}

std::string OffloadModel::why_not_pinned() const {
  return device_.on_gpu() && host_states_.bytes() > 0 && !host_states_.pinned() ? host_states_.why_not() : "";
}

// The GPU preset is close to ViT-g: 1.1G parameters in 40 layers, a forward pass of 60 ms.
struct Preset {
  std::int64_t layers, numel;
  double work_ms;
};
constexpr Preset kOnCpu{8, 1 << 18, 1.0}, kOnGpu{40, 27 << 20, 1.5};
constexpr int kWarmUp = 2, kTraced = 2;

std::vector<Residence> parse_residences(const std::string& text) {
  std::vector<Residence> out;
  for (const std::string_view name : comma_separated(text)) out.push_back(parse_residence(name));
  return out;
}

double iteration_ms(int repeat, OffloadModel& model, const std::function<void()>& once) {
  model.finish();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeat; ++i) once();
  model.finish();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / repeat;
}

struct OffloadRow {
  Residence residence = Residence::device;
  double ms = 0.0;        // per iteration: total wall time, without synchronization between iterations
  double model_ms = 0.0;  // per iteration without the step, in the same run
  std::int64_t device_bytes = 0, host_bytes = 0;
  std::uint64_t checksum = 0;
  std::string note;  // why host memory is not pinned
};

struct OffloadResult {
  Device device;
  std::int64_t layers = 0, numel = 0;
  std::vector<OffloadRow> rows;
};

OffloadRow measure_residence(BenchDevice& device, const OffloadSpec& spec, int repeat,
                             const std::string& trace) {
  OffloadModel model(device, spec);
  OffloadRow row;
  row.residence = spec.residence;
  for (int i = 0; i < kWarmUp; ++i) model.iterate();
  row.ms = iteration_ms(repeat, model, [&] { model.iterate(); });
  row.checksum = model.checksum();
  row.device_bytes = model.device_state_bytes();
  row.host_bytes = model.host_bytes();
  row.note = model.why_not_pinned();
  if (!trace.empty() && spec.residence != Residence::device) {
    trace_offload(true);
    model.trace(kTraced);
    const Status written = write_offload_trace(trace);
    trace_offload(false);
    check(written, "--trace");
  }
  row.model_ms = iteration_ms(repeat, model, [&] { model.pass(); });
  return row;
}

constexpr const char* kFooter = R"(Examples:
  octavo bench offload --device cuda
  octavo bench offload --device cuda --residence device,host --offload-gradients --clip
  octavo bench offload --device cuda --residence stream --trace offload.json

Each layer has one weight. Its forward pass is copies on the device for --work-ms; its backward pass
is copies for twice that time and then the gradient. The step is that of the default optimizer. If
states are in host memory, the next forward pass waits for the weights layer by layer. Iterations
follow one another without waiting. "model ms" is an iteration without a step, so the difference is
the cost of the optimizer. Copies keep the device's memory busy, whereas a model's passes keep its
arithmetic busy, so the step's kernels overlap less here than with a real model.

"weights" is a hash of all weights after the timed iterations. All residences must have the same
hash; otherwise the exit code is 1.

--trace writes two more iterations: a row for the model's passes, and a row for each queue of the
library (copies up and down, kernels, work of the CPU). Open it in chrome://tracing or Perfetto, or
draw it with benchmarks/draw_trace.py. On a CPU, threads emulate the device's queues and no memory is
saved: it only checks that everything works.)";

struct OffloadFlags {
  std::string device = "cpu", residences = "device,stream,host", state = "8bit", param_dtype = "bf16";
  std::optional<std::string> numel;
  std::int64_t layers = 0;  // 0: the default
  double work_ms = 0.0;     // 0: the default
  int repeat = 10, threads = 0;
  bool offload_gradients = false, clip = false, json = false;
  std::string trace;
};

void add_offload_options(CLI::App& command, OffloadFlags& flags) {
  const AddOption text{command};
  text("--device", flags.device, "NAME", "cpu, cuda (the first GPU) or cuda:N");
  text("--residence", flags.residences, "LIST",
       "Places of the states, comma-separated: device, stream, host");
  text("--state", flags.state, "NAME", "State format");
  text("--param-dtype", flags.param_dtype, "NAME", "Weights and gradients: fp32, bf16, fp16");
  command.add_option("--layers", flags.layers, "Layers of the model (default 8, on a GPU 40)")
      ->type_name("N")
      ->check(whole_number(1, 100000));
  command.add_option("--numel", flags.numel, "Parameters of a layer (default 2^18, on a GPU 27Mi)")
      ->type_name("N");
  command
      .add_option(
          "--work-ms", flags.work_ms,
          "Time of a layer's forward pass in milliseconds; the backward pass takes twice that (default "
          "1, on a GPU 1.5)")
      ->type_name("MS")
      ->check(CLI::PositiveNumber);
  command.add_option("--repeat", flags.repeat, "Timed iterations (default 10)")
      ->type_name("N")
      ->check(whole_number(1, 1000000));
  command
      .add_option("--threads", flags.threads,
                  "CPU threads (default: the number of CPUs this process may use)")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  command.add_flag("--offload-gradients", flags.offload_gradients,
                   "Move gradients to host memory in the backward pass");
  command.add_flag("--clip", flags.clip, "Clip by the norm of all gradients");
  text("--trace", flags.trace, "FILE",
       "Write two iterations as Chrome trace JSON; needs --residence stream or host, or device and one of "
       "them");
  command.add_flag("--json", flags.json, "Print JSON on stdout, nothing else");
}

// Throws a usage Failure if flags are wrong. With `trace`, the iterations of the one residence that is not
// `device` are written to that file.
OffloadResult run_offload(const OffloadFlags& flags) {
  const std::vector<Residence> residences = parse_residences(flags.residences);
  const auto offloaded =
      residences.size() - static_cast<std::size_t>(std::ranges::count(residences, Residence::device));
  if (!flags.trace.empty() && offloaded != 1)
    throw Failure(kExitUsage, "--trace: got --residence " + flags.residences +
                                  ", expected one of stream and host: a trace shows one");
  OffloadResult result;
  result.device = parse_device(flags.device);
  const Preset& preset = result.device.kind == DeviceKind::cuda ? kOnGpu : kOnCpu;
  OffloadSpec spec;
  spec.state = take(parse_state_format(flags.state), "--state");
  spec.dtype = parse_element("--param-dtype", flags.param_dtype);
  spec.layers = result.layers = flags.layers > 0 ? flags.layers : preset.layers;
  spec.numel = result.numel = flags.numel ? parse_numel(*flags.numel) : preset.numel;
  spec.take_gradients = flags.offload_gradients;
  spec.clip = flags.clip;
  spec.threads = flags.threads > 0 ? flags.threads : default_threads();
  const std::unique_ptr<BenchDevice> device = make_device(result.device, spec.threads);
  spec.copies = copies_for(*device, flags.work_ms > 0 ? flags.work_ms : preset.work_ms);
  for (const Residence residence : residences) {
    spec.residence = residence;
    result.rows.push_back(measure_residence(*device, spec, flags.repeat, flags.trace));
  }
  return result;
}

std::string offload_table(const OffloadResult& result) {
  using Align = Table::Align;
  Table table({{"residence"},
               {"ms/iteration", Align::right},
               {"model ms", Align::right},
               {"beyond it", Align::right},
               {"states on the device", Align::right},
               {"host memory", Align::right},
               {"weights"}});
  std::string notes;
  for (const OffloadRow& row : result.rows) {
    const bool same = row.checksum == result.rows.front().checksum;
    table.add({residence_name(row.residence), fixed(row.ms, 2), fixed(row.model_ms, 2),
               fixed(row.ms - row.model_ms, 2), human_bytes(row.device_bytes), human_bytes(row.host_bytes),
               same ? hex16(row.checksum) : "differ"});
    if (!row.note.empty()) notes += residence_name(row.residence) + ": not pinned: " + row.note + "\n";
  }
  return device_name(result.device) + ", " + grouped(result.layers) + " layers of " + grouped(result.numel) +
         " parameters\n" + table.text() + notes;
}

std::string offload_json(const OffloadResult& result) {
  nlohmann::ordered_json out = {{"device", device_name(result.device)},
                                {"layers", result.layers},
                                {"numel", result.numel},
                                {"rows", nlohmann::ordered_json::array()}};
  for (const OffloadRow& row : result.rows)
    out["rows"].push_back({{"residence", residence_name(row.residence)},
                           {"ms", row.ms},
                           {"model_ms", row.model_ms},
                           {"device_state_bytes", row.device_bytes},
                           {"host_bytes", row.host_bytes},
                           {"checksum", hex16(row.checksum)},
                           {"not_pinned", row.note}});
  return out.dump(2) + "\n";
}

// Returns an empty string, or which residences' weights differ from the first row's.
std::string offload_errors(const OffloadResult& result) {
  std::string out;
  for (const OffloadRow& row : result.rows)
    if (row.checksum != result.rows.front().checksum)
      out += (out.empty() ? "" : "; ") + residence_name(row.residence) + ": weights differ from those of " +
             residence_name(result.rows.front().residence);
  return out;
}

void bench_offload(const OffloadFlags& flags) {
  const OffloadResult result = run_offload(flags);
  std::cout << (flags.json ? offload_json(result) : offload_table(result));
  if (const std::string errors = offload_errors(result); !errors.empty()) throw Failure(kExitFailure, errors);
}

}  // namespace

void add_bench_offload(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("offload", "Time a step whose states are in host memory");
  auto flags = std::make_shared<OffloadFlags>();
  add_offload_options(*command, *flags);
  command->footer(kFooter);
  command->callback([flags] { bench_offload(*flags); });
}

}  // namespace octavo::cli
