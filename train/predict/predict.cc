// SPDX-License-Identifier: MIT
#include "train/predict/predict.h"

#include "train/config/checks.h"
#include "train/config/settings.h"
#include "train/console/signals.h"
#include "train/distributed/process_group.h"
#include "train/model/model.h"
#include "train/optim/bucket_layout.h"
#include "train/optim/fp8.h"
#include "train/optim/gradients.h"
#include "train/optim/param_groups.h"
#include "train/optim/precision.h"
#include "train/optim/shards.h"
#include "train/predict/host.h"
#include "train/predict/trace_device.h"

#include <fmt/format.h>
#include <octavo/backend.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using octavo::plan::Event;
using octavo::plan::Kernel;
using octavo::plan::Owner;
using octavo::plan::Precision;

// torch allocates a workspace for each cuBLAS handle from its caching allocator, from the first matmul on.
// The forward pass has a handle, and the backward pass's thread has another.
constexpr int kHandles = 2;
std::int64_t blas_workspace(const octavo::plan::Gpu& gpu) {
  constexpr std::int64_t kMiB = 1 << 20;
  return gpu.compute_major >= 9 ? 32 * kMiB : 8 * kMiB + 128 * 1024;
}

// Microseconds that a run measures for a cast in addition to its kernel: it is two launches, timed alone.
constexpr double kTimedAlone = 9;

// Chooses bf16 or FP8 for forward, dgrad and wgrad by predicted GPU times, as a run does by measured times.
octavo::fp8::Choice faster_passes(const octavo::plan::Gpu& gpu, const octavo::fp8::Layer& layer,
                                  double casts_of_weight) {
  const auto product = [&](std::int64_t rows, std::int64_t columns, std::int64_t inner, Precision precision) {
    Kernel kernel;
    kernel.work = octavo::plan::Work::product;
    kernel.precision = precision;
    kernel.batch = layer.groups, kernel.rows = rows, kernel.columns = columns, kernel.inner = inner;
    const double each = precision == Precision::fp8 ? 1 : 2;
    kernel.bytes =
        static_cast<double>(layer.groups) * (each * static_cast<double>(rows * inner + inner * columns) +
                                             2.0 * static_cast<double>(rows * columns));
    return 1e6 * octavo::plan::time(gpu, kernel).seconds;
  };
  const auto cast = [&](std::int64_t elements, double orientations) {
    Kernel kernel;
    kernel.bytes = static_cast<double>(elements) * (2.0 + orientations);
    return kTimedAlone + 1e6 * octavo::plan::time(gpu, kernel).seconds;
  };
  const std::int64_t t = layer.tokens, in = layer.inputs, out = layer.outputs;
  const std::array<std::array<std::int64_t, 3>, 3> sizes = {{{t, out, in}, {t, in, out}, {out, in, t}}};
  const std::array<std::int64_t, 3> elements = {(layer.one_input ? 1 : layer.groups) * t * in,
                                                layer.groups * in * out,
                                                (layer.one_output ? 1 : layer.groups) * t * out};
  octavo::fp8::LayerTimes times;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto& [rows, columns, inner] = sizes[i];
    times.plain[i] = product(rows, columns, inner, Precision::bf16);
    times.fp8[i] = product(rows, columns, inner, Precision::fp8);
    times.cast[i] = cast(elements[i], 1);
    times.cast_two[i] = cast(elements[i], 2);
  }
  times.casts_of_weight = casts_of_weight;
  return octavo::fp8::fastest(times);
}

// Frees a gradient on the device as soon as it is complete, as offloading to host memory does.
struct LeavesTheDevice : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& param) override { param.mutable_grad().reset(); }
};

// Two training steps and an evaluation batch on a fake device.
struct StepTrace {
  // Allocations and deallocations from an empty device to the end of the second step. The first step creates
  // the optimizer states at its end. Events from `evaluation` on belong to one batch of an evaluation.
  std::vector<Event> events;
  std::size_t evaluation = 0;
  // Kernels of one step. Those from `backward` on belong to the last backward pass, those from `update` on to
  // the optimizer. Kernels of the second micro-batch represent all later micro-batches too (Kernel::times).
  std::vector<FakeKernel> kernels;
  std::size_t backward = 0, update = 0;
  std::int64_t units = 0;  // units of throughput in a step of one rank
  std::int64_t gradient_bytes = 0;
  std::int64_t communication = 0;  // buffers for communication; their events have the owner `gradients`
};

// Traces a run into a StepTrace, and writes the sizes of its parts into a prediction.
class Tracer {
 public:
  Tracer(const Settings& settings, const OpenTask& task, const PredictionRequest& request, Prediction& sizes)
      : request_(request),
        task_(*task.task),
        data_(task.data),
        settings_(settings),
        training_(settings_.training),
        ranks_(static_cast<int>(request.num_gpus)),
        fake_(request.cpu ? TraceDevice::Of::cpu : TraceDevice::Of::gpu),
        sizes_(sizes) {}

  Result<StepTrace> run();

 private:
  Status build();
  Status choose_fp8();
  void step(bool first);
  void micro_batch(std::int64_t number);
  void evaluate();
  void add_update_kernels();
  [[nodiscard]] Order order() const {
    return {data_.samples, static_cast<std::uint64_t>(settings_.data.seed), 0};
  }
  [[nodiscard]] bool shards() const { return ranks_ > 1 && divides_states(training_); }

  const PredictionRequest& request_;
  Task& task_;
  const TaskData& data_;
  const Settings& settings_;
  const TrainingSettings& training_;
  const int ranks_;
  TraceDevice fake_;
  std::shared_ptr<torch::nn::Module> model_;
  ParameterGroups groups_;
  PlannedStates states_;
  std::unique_ptr<ProcessGroup> process_group_;
  std::unique_ptr<ShardedWeights> shards_;
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<Fp8> fp8_;
  bool fp8_enabled_ = false;
  Batch host_;
  StepTrace out_;
  Prediction& sizes_;
};

Status Tracer::build() {
  if (!request_.cpu) fake_.set_gpu(request_.gpu);
  fake_.set_owner(Owner::weights);
  fake_.redirect_cpu_allocations(true);
  const TaskModel built = task_.build(settings_);
  model_ = built.module;
  fake_.redirect_cpu_allocations(false);
  place_model(*model_, TraceDevice::device(), has_bf16_weights(training_));
  // Weights are moved to the GPU with their training types. Other tensors of the model's construction stay on
  // the host.
  std::vector<torch::Tensor> placed;
  for (const auto& [name, tensor] : tensors_of(*model_)) placed.push_back(tensor);
  fake_.forget_all_but(placed);
  const NamedTensors parameters = parameters_of(*model_);
  ASSIGN_OR_RETURN(auto groups, resolve_groups(training_, parameters));
  groups_ = std::move(groups);
  freeze(groups_);
  for (const auto& [name, tensor] : parameters) sizes_.parameters += tensor.numel();
  for (const auto& [name, tensor] : groups_.parameters) sizes_.trained += tensor.numel();
  process_group_ = ProcessGroup::pretend(ranks_);
  if (shards()) {
    const BucketLayout layout = make_bucket_layout(groups_, ranks_, true);
    states_ = planned_states(training_, groups_, &layout);
    shards_ = std::make_unique<ShardedWeights>(*process_group_, groups_, layout);
  } else {
    states_ = planned_states(training_, groups_);
  }
  sizes_.states = states_.bytes;
  RETURN_IF_ERROR(choose_fp8());
  if (fp8_enabled_) {
    const std::int64_t uses = built.uses_of_weights * training_.gradient_accumulation_steps;
    fake_.set_owner(Owner::workspace);
    fp8_ = std::make_unique<Fp8>(training_.fp8, parameters, uses);
    fake_.set_fp8_choice([&gpu = request_.gpu, uses](const octavo::fp8::Layer& layer) {
      return faster_passes(gpu, layer, 1.0 / static_cast<double>(std::max<std::int64_t>(uses, 1)));
    });
  }
  const bool gradients_leave =
      training_.offload_gradients && ranks_ == 1 && training_.offload != Offload::none;
  if (gradients_leave) {
    for (const auto& [name, param] : groups_.parameters)
      torch::autograd::impl::set_post_acc_grad_hooks(param, std::make_unique<LeavesTheDevice>());
  }
  fake_.set_owner(Owner::gradients);
  // Offloaded gradients are summed over micro-batches in host memory. If a part of the states stays on the
  // device, the sums of all parameters are counted, which is more than a run has.
  const bool all_leave = gradients_leave && training_.offload_ratio == 1 && !training_.gpu_state_budget;
  const std::int64_t summed_here = all_leave ? 1 : training_.gradient_accumulation_steps;
  gradients_ = make_gradients(*process_group_, groups_, training_, summed_here, shards_.get());
  out_.communication = gradients_->communication_bytes();
  sizes_.gradient_sums = gradients_->sum_bytes();
  for (const auto& [name, param] : groups_.parameters)
    out_.gradient_bytes += static_cast<std::int64_t>(param.nbytes());
  for (int i = 0; i < kHandles && !request_.cpu; ++i)
    fake_.add_allocation(blas_workspace(request_.gpu), Owner::workspace);
  return {};
}

// Decides on FP8 as a run does: if the GPU has no FP8, returns an error or falls back to bf16 matmuls.
Status Tracer::choose_fp8() {
  const Fp8Settings& fp8 = training_.fp8;
  if (!fp8.enabled) return {};
  octavo::GpuInfo gpu;
  gpu.name = request_.gpu.name;
  gpu.compute_major = request_.gpu.compute_major, gpu.compute_minor = request_.gpu.compute_minor;
  gpu.usable = true;
  gpu.fp8_hardware = request_.gpu.flops[static_cast<std::size_t>(Precision::fp8)] > 0;
  Status bad = octavo::fp8::supported(gpu, fp8.recipe.recipe);
  fp8_enabled_ = bad.ok();
  if (bad.ok() || fp8.fallback == Fp8Fallback::bf16) return {};
  return Status(bad.code(), "training.fp8: " + bad.message());
}

// Traces a micro-batch, in the same order as Stepper::micro_batch() (train/run/step.h).
void Tracer::micro_batch(std::int64_t number) {
  fake_.set_owner(Owner::batch);
  const Batch batch = to_device(host_, TraceDevice::device());
  fake_.set_owner(Owner::activations);
  torch::Tensor loss;
  {
    const AutocastScope autocast(TraceDevice::device(), training_.compute_dtype);
    const MatmulPrecisionScope products = fp8_ != nullptr ? fp8_->scope() : MatmulPrecisionScope(nullptr);
    loss = task_.loss(batch, {static_cast<std::uint64_t>(training_.seed), number}) / 1.0;
  }
  TraceDevice::forget_casts();
  out_.backward = fake_.kernels().size();
  loss.backward();
  for (const auto& [name, param] : groups_.parameters) fake_.set_owner_of(param.grad(), Owner::gradients);
  gradients_->micro_batch_done();
}

// Adds the optimizer's kernels. The norm reads gradients. The update reads them again, and reads and writes
// weights and states.
void Tracer::add_update_kernels() {
  const auto bytes = [](std::int64_t count) { return static_cast<double>(count); };
  double weights = 0, gradients = 0;
  for (const auto& [name, param] : groups_.parameters) {
    weights += bytes(static_cast<std::int64_t>(param.nbytes()));
    const torch::Tensor& grad = param.grad();
    if (grad.defined() || ranks_ > 1)
      gradients += bytes(static_cast<std::int64_t>(grad.defined() ? grad.nbytes() : param.nbytes()));
  }
  const StepOptimizer::Bytes& b = states_.bytes;
  const double divided = shards() ? ranks_ : 1;
  fake_.add_kernel("gradient norm", gradients / divided, 2);
  fake_.add_kernel("optimizer step", (gradients + 2 * weights) / divided + 2 * bytes(b.states + b.master), 2);
}

void Tracer::step(bool first) {
  gradients_->clear();
  fake_.forget_kernels();
  if (first)
    host_ = task_.largest_batch(order(), training_.per_device_train_batch_size, Task::BatchUse::training);
  sizes_.rows = host_.rows();
  sizes_.padded_length = host_.padded_length;
  sizes_.passes = training_.gradient_accumulation_steps;
  out_.units = sizes_.rows * data_.units_per_row * sizes_.passes;
  // Only two micro-batches are traced, because later ones are equal to the second.
  std::size_t second = 0;
  const auto traced = std::min<std::int64_t>(sizes_.passes, 2);
  gradients_->expect(traced, traced);
  for (std::int64_t i = 0; i < traced; ++i) {
    second = fake_.kernels().size();
    micro_batch(first ? 1 : 2);
  }
  fake_.repeat_kernels(second, std::max<std::int64_t>(sizes_.passes - 1, 1));
  gradients_->finish();
  out_.update = fake_.kernels().size();
  if (first) {
    for (const std::int64_t bytes : states_.buffers) fake_.add_allocation(bytes, Owner::states);
    for (const std::int64_t bytes : states_.masters) fake_.add_allocation(bytes, Owner::master);
  }
  add_update_kernels();
}

// Traces an evaluation batch. Gradients of the last step are still allocated.
void Tracer::evaluate() {
  const torch::NoGradGuard no_grad;
  const EvalScope scope(*model_);
  const Batch host =
      task_.largest_batch(order(), training_.per_device_eval_batch_size, Task::BatchUse::evaluation);
  sizes_.evaluation_rows = host.rows();
  fake_.set_owner(Owner::batch);
  const Batch batch = to_device(host, TraceDevice::device());
  fake_.set_owner(Owner::activations);
  const AutocastScope autocast(TraceDevice::device(), training_.compute_dtype);
  task_.loss(batch, {static_cast<std::uint64_t>(training_.seed), 1});
}

Result<StepTrace> Tracer::run() {
  try {
    RETURN_IF_ERROR(build());
    step(true);
    step(false);
    out_.kernels = fake_.kernels();
    out_.evaluation = fake_.events().size();
    evaluate();
    TraceDevice::forget_casts();
  } catch (const c10::Error& error) {
    return Status::unsupported(
        std::string(error.what_without_backtrace()) +
        (request_.cpu ? "" : "; where the GPU is, octavo plan --measure runs a few steps instead"));
  }
  out_.events = fake_.events();
  return std::move(out_);
}

std::vector<Kernel> kernels_of(const StepTrace& trace, std::size_t from, std::size_t to) {
  std::vector<Kernel> out;
  for (std::size_t i = from; i < to; ++i) out.push_back(trace.kernels[i].kernel);
  return out;
}

// Gradients become ready evenly over the backward pass of the last micro-batch, bucket by bucket.
double exposed(const PredictionRequest& request, const StepTrace& trace, double backward) {
  if (request.num_gpus == 1) return 0;
  const octavo::plan::Links links{.ranks = request.num_gpus,
                                  .per_host = std::min(request.gpus_per_host, request.num_gpus),
                                  .within = request.gpu.peer_bandwidth,
                                  .between = request.network};
  std::vector<octavo::plan::Bucket> buckets;
  const std::int64_t count =
      std::max<std::int64_t>((trace.gradient_bytes + kBucketBytes - 1) / kBucketBytes, 1);
  for (std::int64_t i = 1; i <= count; ++i)
    buckets.push_back({backward * static_cast<double>(i) / static_cast<double>(count),
                       std::min(kBucketBytes, trace.gradient_bytes - (i - 1) * kBucketBytes)});
  return octavo::plan::exposed_seconds(links, buckets, backward);
}

// Returns the seconds of an offloaded update that the forward and backward passes do not hide. Streamed
// states cross the link in both directions simultaneously. If the CPU does the update, gradients are copied
// to the host, weights are copied back, and the CPU's cores compute. The shares were measured with Parakeet
// 0.6B on an H200 with 16 cores; for other runs they are rough.
double offloaded(const octavo::plan::Gpu& gpu, const StepTrace& trace, const Prediction& sizes, bool by_cpu) {
  constexpr double kShown = 0.55, kShownByCpu = 0.5, kCpuPerParameter = 1.75e-10;
  const auto states = static_cast<double>(sizes.states.host_states + sizes.states.host_master);
  if (states == 0 || gpu.host_bandwidth <= 0) return 0;
  if (!by_cpu) return kShown * states / gpu.host_bandwidth;
  return kShownByCpu * (2 * static_cast<double>(trace.gradient_bytes) / gpu.host_bandwidth +
                        kCpuPerParameter * static_cast<double>(sizes.trained));
}

std::vector<std::pair<std::string, double>> seconds_by_name(const octavo::plan::Gpu& gpu,
                                                            const StepTrace& trace) {
  std::map<std::string, double> seconds;
  for (const FakeKernel& each : trace.kernels)
    seconds[each.name] +=
        static_cast<double>(each.kernel.times) * octavo::plan::time(gpu, each.kernel).seconds;
  std::vector<std::pair<std::string, double>> out(seconds.begin(), seconds.end());
  std::ranges::sort(out, std::ranges::greater(), &std::pair<std::string, double>::second);
  return out;
}

void add_time(const PredictionRequest& request, const StepTrace& trace, bool updated_by_cpu,
              Prediction& out) {
  out.kernels = seconds_by_name(request.gpu, trace);
  out.launch_seconds = request.launch_seconds;
  const double launch = request.launch_seconds > 0 ? request.launch_seconds : kFastLaunch;
  const auto time_of = [&](const std::vector<Kernel>& kernels) {
    return octavo::plan::time(request.gpu, kernels, launch);
  };
  out.compute = time_of(kernels_of(trace, 0, trace.kernels.size()));
  out.update_seconds = time_of(kernels_of(trace, trace.update, trace.kernels.size())).seconds;
  std::vector<Kernel> last_backward = kernels_of(trace, trace.backward, trace.update);
  for (Kernel& each : last_backward) each.times = 1;
  out.exposed_seconds = exposed(request, trace, time_of(last_backward).seconds);
  out.offload_seconds = offloaded(request.gpu, trace, out, updated_by_cpu);
  out.step_seconds = out.compute.seconds + out.exposed_seconds + out.offload_seconds;
  out.units_per_second = static_cast<double>(trace.units * request.num_gpus) / out.step_seconds;
  for (const FakeKernel& each : trace.kernels) out.launches += each.kernel.times * each.kernel.launches;
}

// Measures the run with this number of rows. The number of micro-batches remains the run's.
Result<Prediction> measure_rows(const LoadWith& load, const PredictionRequest& request, const Settings& run,
                                std::int64_t rows) {
  std::vector<std::string> words = {
      fmt::format("training.per_device_train_batch_size={}", rows), "training.global_batch_size=null",
      "training.num_gpus=null",
      fmt::format("training.gradient_accumulation_steps={}", run.training.gradient_accumulation_steps)};
  if (request.gpu.device >= 0) words.push_back(fmt::format("training.device=cuda:{}", request.gpu.device));
  ASSIGN_OR_RETURN(const auto config, load(words));
  ASSIGN_OR_RETURN(auto measured, request.measure(config));
  measured.rows = rows;
  return measured;
}

// Returns the prediction for `rows` rows on the line through two samples, or that of the only sample.
Prediction extrapolate(const std::vector<Prediction>& samples, std::int64_t rows) {
  const Prediction &few = samples.front(), &many = samples.back();
  const auto at_rows = [&](auto value) {
    const auto last = static_cast<double>(value(many));
    if (samples.size() == 1) return last;
    const double each = (last - static_cast<double>(value(few))) / static_cast<double>(many.rows - few.rows);
    return last + std::max(each, 0.0) * static_cast<double>(rows - many.rows);
  };
  Prediction out = many;
  out.rows = rows;
  for (const Prediction& each : samples) out.measured_rows.push_back(each.rows);
  std::int64_t& activations = out.memory.owners[static_cast<std::size_t>(Owner::activations)];
  activations = std::llround(at_rows([](const Prediction& p) { return p.of(Owner::activations); }));
  out.memory.allocated += activations - many.of(Owner::activations);
  out.memory.reserved = std::max<std::int64_t>(
      std::llround(at_rows([](const Prediction& p) { return p.memory.reserved; })), out.memory.allocated);
  out.peak = out.memory.allocated;
  out.step_seconds = at_rows([](const Prediction& p) { return p.step_seconds; });
  out.compute.gpu_seconds = out.step_seconds;
  return out;
}

Result<Prediction> predict_from_steps(const LoadWith& load, const PredictionRequest& request,
                                      const Settings& settings) {
  if (request.num_gpus > 1)
    return unsupported_error("a plan of {} GPUs cannot be measured on one; use --num-gpus 1",
                             request.num_gpus);
  ASSIGN_OR_RETURN(const auto task, open_task(settings));
  const Order order(task.data.samples, static_cast<std::uint64_t>(settings.data.seed), 0);
  const std::int64_t asked = settings.training.per_device_train_batch_size;
  const std::int64_t rows = task.task->largest_batch(order, asked, Task::BatchUse::training).rows();

  // Very small batches do not show the time of large ones, because the host limits their speed.
  std::vector<Prediction> samples;
  std::int64_t few = std::max<std::int64_t>(rows / 4, 1);
  while (samples.empty() || (samples.size() == 1 && samples.front().rows < rows)) {
    const std::int64_t tried = samples.empty() ? few : std::min(2 * samples.front().rows, rows);
    auto one = measure_rows(load, request, settings, tried);
    if (one.ok()) {
      samples.push_back(std::move(*one));
      continue;
    }
    // The device's memory may be too small.
    if (one.status().code() != StatusCode::failed || few == 1 || StopSignals::received() != 0)
      return one.status();
    samples.clear();
    few = std::max<std::int64_t>(few / 4, 1);
  }
  Prediction out = extrapolate(samples, rows);
  out.gpu = request.gpu;
  const TaskText text = task.task->text();
  out.batch = text.batch(asked);
  out.unit = text.unit.name;
  out.units_per_second = static_cast<double>(rows * task.data.units_per_row * out.passes) / out.step_seconds;
  return out;
}

}  // namespace

Result<Prediction> predict(const LoadWith& load, const PredictionRequest& request) {
  using Method = PredictionRequest::Method;
  ASSIGN_OR_RETURN(const auto config, load({}));
  if (request.method != Method::steps) {
    auto traced = predict(config.settings, request);
    const bool measurable =
        request.method == Method::trace_or_steps && request.gpu.device >= 0 && request.num_gpus == 1;
    if (traced.ok() || traced.status().code() != StatusCode::unsupported || !measurable) return traced;
    if (request.on_measuring) request.on_measuring(traced.status().message());
  }
  return predict_from_steps(load, request, config.settings);
}

Result<Prediction> predict_with(const LoadWith& load, const std::vector<std::string>& words,
                                const PredictionRequest& request, const OpenTask* task) {
  ASSIGN_OR_RETURN(const auto config, load(words));
  const bool other_data =
      std::ranges::any_of(words, [](const std::string& word) { return word.starts_with("data."); });
  if (task == nullptr || other_data) return predict(config.settings, request);
  return predict(config.settings, *task, request);
}

Result<Prediction> predict(const Settings& settings, const PredictionRequest& request) {
  ASSIGN_OR_RETURN(const auto task, open_task(settings));
  return predict(settings, task, request);
}

Result<Prediction> predict(const Settings& given, const OpenTask& task, const PredictionRequest& request) {
  Settings settings = given;
  TrainingSettings& training = settings.training;
  ASSIGN_OR_RETURN(training.gradient_accumulation_steps, accumulation_for(training, request.num_gpus));
  if (request.num_gpus > 1) training.offload_gradients = false;  // ranks sum gradients on devices
  Prediction out;
  ASSIGN_OR_RETURN(const auto trace, Tracer(settings, task, request, out).run());
  ASSIGN_OR_RETURN(out.memory, octavo::plan::simulate(std::span(trace.events).first(trace.evaluation)));
  ASSIGN_OR_RETURN(const auto evaluated, octavo::plan::simulate(trace.events));
  out.gpu = request.gpu;
  out.num_gpus = request.num_gpus;
  out.cpu = request.cpu;
  out.peak = evaluated.allocated;
  const TaskText text = task.task->text();
  out.batch = text.batch(training.per_device_train_batch_size);
  out.unit = text.unit.name;
  out.memory.owners[static_cast<std::size_t>(Owner::gradients)] -= trace.communication;
  out.memory.owners[static_cast<std::size_t>(Owner::communication)] += trace.communication;
  for (const FakeKernel& each : trace.kernels) {
    const Kernel& k = each.kernel;
    out.matmul_flops += 2.0 * static_cast<double>(k.batch) * static_cast<double>(k.rows) *
                        static_cast<double>(k.columns) * static_cast<double>(k.inner);
  }
  if (request.cpu) {
    // On the CPU torch allocates exactly the requested bytes.
    out.memory.allocated -= out.memory.rounding;
    out.memory.reserved = out.memory.allocated;
    out.peak -= evaluated.rounding;
    out.memory.rounding = 0;
    return out;
  }
  out.evaluation = evaluated.reserved - out.memory.reserved;
  out.slow_type = slow_type_text(training.compute_dtype, request.gpu.name, request.gpu.compute_major,
                                 request.gpu.compute_minor);
  add_time(request, trace, training.offload == Offload::host, out);
  return out;
}

}  // namespace octavo_train
