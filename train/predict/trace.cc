// SPDX-License-Identifier: MIT
#include "train/predict/trace.h"

#include "train/base/status.h"
#include "train/data/stages.h"
#include "train/distributed/process_group.h"
#include "train/model/model.h"
#include "train/optim/fp8.h"
#include "train/optim/gradients.h"
#include "train/optim/param_groups.h"
#include "train/optim/precision.h"
#include "train/optim/shards.h"
#include "train/predict/autocast.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

namespace octavo_train {
namespace {

using octavo::plan::Event;
using octavo::plan::Kernel;
using octavo::plan::Owner;

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
  using octavo::plan::Precision;
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
struct LeavesTheDevice : ::torch::autograd::PostAccumulateGradHook {
  void operator()(const ::torch::autograd::Variable& param) override { param.mutable_grad().reset(); }
};

class Tracing {
 public:
  explicit Tracing(const TraceRequest& request)
      : request_(request),
        settings_(request.settings),
        training_(settings_.training),
        fake_(request.device) {}

  Result<StepTrace> run();

 private:
  Status build();
  Status choose_fp8();
  void step(bool first);
  void pass(const Batch& batch, std::int64_t number);
  void evaluate();
  void make_states();
  void add_update_kernels();
  [[nodiscard]] Order order() const;

  const TraceRequest& request_;
  Settings settings_;
  const TrainingSettings& training_;
  TraceDevice fake_;
  std::shared_ptr<::torch::nn::Module> model_;
  ParameterGroups groups_;
  PlannedStates states_;
  std::unique_ptr<ProcessGroup> world_;
  std::unique_ptr<ShardedWeights> shards_;
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<Fp8> fp8_;
  bool fp8_enabled_ = false;
  Batch host_;
  StepTrace out_;
};

Status Tracing::build() {
  if (request_.device == TraceDevice::Of::gpu) fake_.set_gpu(request_.gpu);
  fake_.set_owner(Owner::weights);
  fake_.catch_cpu(true);
  model_ = request_.task.build(settings_);
  fake_.catch_cpu(false);
  place_model(*model_, TraceDevice::device(), has_bf16_weights(training_));
  // Weights are moved to the GPU with their training types. Other tensors of the model's construction stay on
  // the host.
  std::vector<::torch::Tensor> placed;
  for (const auto& [name, tensor] : tensors_of(*model_)) placed.push_back(tensor);
  fake_.settle(placed);
  const NamedTensors parameters = parameters_of(*model_);
  ASSIGN_OR_RETURN(auto groups, resolve_groups(training_, parameters));
  groups_ = std::move(groups);
  freeze(groups_);
  for (const auto& [name, tensor] : parameters) out_.parameters += tensor.numel();
  for (const auto& [name, tensor] : groups_.parameters) out_.trained += tensor.numel();
  world_ = ProcessGroup::pretend(request_.ranks);
  if (request_.ranks > 1 && divides_states(training_)) {
    const ParallelLayout layout = make_bucket_layout(groups_, request_.ranks, true);
    states_ = planned_states(training_, groups_, &layout);
    shards_ = std::make_unique<ShardedWeights>(*world_, groups_, layout);
  } else {
    states_ = planned_states(training_, groups_);
  }
  out_.states = states_.bytes;
  out_.on_cpu = training_.offload == Offload::host;
  RETURN_IF_ERROR(choose_fp8());
  if (fp8_enabled_) {
    const std::int64_t uses = request_.task.uses_of_weights() * training_.gradient_accumulation_steps;
    fake_.set_owner(Owner::workspace);
    fp8_ = std::make_unique<Fp8>(training_.fp8, parameters, uses);
    fake_.set_fp8_choice([&gpu = request_.gpu, uses](const octavo::fp8::Layer& layer) {
      return faster_passes(gpu, layer, 1.0 / static_cast<double>(std::max<std::int64_t>(uses, 1)));
    });
  }
  const bool gradients_leave =
      training_.offload_gradients && request_.ranks == 1 && training_.offload != Offload::none;
  if (gradients_leave) {
    for (const auto& [name, param] : groups_.parameters)
      ::torch::autograd::impl::set_post_acc_grad_hooks(param, std::make_unique<LeavesTheDevice>());
  }
  fake_.set_owner(Owner::gradients);
  // Offloaded gradients are summed over micro-batches in host memory. If a part of the states stays on the
  // device, the sums of all parameters are counted, which is more than a run has.
  const bool all_leave = gradients_leave && training_.offload_ratio == 1 && !training_.gpu_state_budget;
  const std::int64_t summed_here = all_leave ? 1 : training_.gradient_accumulation_steps;
  gradients_ = make_gradients(*world_, groups_, training_, summed_here, shards_.get());
  out_.communication = gradients_->communication_bytes();
  out_.gradient_sums = gradients_->sum_bytes();
  for (const auto& [name, param] : groups_.parameters)
    out_.gradient_bytes += static_cast<std::int64_t>(param.nbytes());
  const int handles = request_.device == TraceDevice::Of::gpu ? kHandles : 0;
  for (int i = 0; i < handles; ++i) fake_.take(blas_workspace(request_.gpu), Owner::workspace);
  return {};
}

// Decides on FP8 as a run does: if the GPU has no FP8, returns an error or falls back to bf16 matmuls.
Status Tracing::choose_fp8() {
  const Fp8Settings& fp8 = training_.fp8;
  if (!fp8.enabled) return {};
  octavo::GpuInfo gpu;
  gpu.name = request_.gpu.name;
  gpu.compute_major = request_.gpu.compute_major, gpu.compute_minor = request_.gpu.compute_minor;
  gpu.usable = true;
  gpu.fp8_hardware = request_.gpu.flops[static_cast<std::size_t>(octavo::plan::Precision::fp8)] > 0;
  Status bad = octavo::fp8::supported(gpu, fp8.recipe.recipe);
  fp8_enabled_ = bad.ok();
  if (bad.ok() || fp8.fallback == Fp8Fallback::bf16) return {};
  return Status(bad.code(), "training.fp8: " + bad.message());
}

Order Tracing::order() const {
  return {request_.task.samples(), static_cast<std::uint64_t>(settings_.data.seed), 0};
}

// Traces a micro-batch, in the same order as Stepper::pass() (train/run/step.h).
void Tracing::pass(const Batch& host, std::int64_t number) {
  fake_.set_owner(Owner::batch);
  const Batch batch = to_device(host, TraceDevice::device());
  fake_.set_owner(Owner::activations);
  ::torch::Tensor loss;
  {
    const AutocastScope autocast(TraceDevice::device(), training_.compute_dtype);
    const MatmulPrecisionScope products = fp8_ != nullptr ? fp8_->scope() : MatmulPrecisionScope(nullptr);
    loss = request_.task.loss(batch, {static_cast<std::uint64_t>(training_.seed), number}) / 1.0;
  }
  forget_fake_casts();
  out_.backward = fake_.kernels().size();
  loss.backward();
  for (const auto& [name, param] : groups_.parameters) fake_.give(param.grad(), Owner::gradients);
  gradients_->pass_done();
}

void Tracing::make_states() {
  for (const std::int64_t bytes : states_.buffers) fake_.take(bytes, Owner::states);
  for (const std::int64_t bytes : states_.masters) fake_.take(bytes, Owner::master);
}

// Adds the optimizer's kernels. The norm reads gradients. The update reads them again, and reads and writes
// weights and states.
void Tracing::add_update_kernels() {
  const auto bytes = [](std::int64_t count) { return static_cast<double>(count); };
  double weights = 0, gradients = 0;
  for (const auto& [name, param] : groups_.parameters) {
    weights += bytes(static_cast<std::int64_t>(param.nbytes()));
    const ::torch::Tensor& grad = param.grad();
    if (grad.defined() || request_.ranks > 1)
      gradients += bytes(static_cast<std::int64_t>(grad.defined() ? grad.nbytes() : param.nbytes()));
  }
  const StepOptimizer::Bytes& b = states_.bytes;
  const double divided = request_.ranks > 1 && divides_states(training_) ? request_.ranks : 1;
  fake_.add_kernel("gradient norm", gradients / divided, 2);
  fake_.add_kernel("optimizer step", (gradients + 2 * weights) / divided + 2 * bytes(b.states + b.master), 2);
}

void Tracing::step(bool first) {
  gradients_->clear();
  fake_.forget_kernels();
  if (first) host_ = request_.task.largest(order(), request_.rows);
  const Batch& host = host_;
  out_.rows = host.rows();
  out_.padded_length = host.padded_length;
  out_.units = request_.task.units(host.rows()) * training_.gradient_accumulation_steps;
  out_.passes = training_.gradient_accumulation_steps;
  // Only two micro-batches are traced, because later ones are equal to the second.
  std::size_t second = 0;
  const auto traced = std::min<std::int64_t>(out_.passes, 2);
  gradients_->expect(traced, traced);
  for (std::int64_t i = 0; i < traced; ++i) {
    second = fake_.kernels().size();
    pass(host, first ? 1 : 2);
  }
  fake_.repeat_kernels(second, std::max<std::int64_t>(out_.passes - 1, 1));
  gradients_->finish();
  out_.update = fake_.kernels().size();
  if (first) make_states();
  add_update_kernels();
}

// Traces an evaluation batch. Gradients of the last step are still allocated.
void Tracing::evaluate() {
  const ::torch::NoGradGuard no_grad;
  const EvalScope scope(*model_);
  const Batch host = request_.task.largest_to_evaluate(order(), training_.per_device_eval_batch_size);
  out_.evaluation_rows = host.rows();
  fake_.set_owner(Owner::batch);
  const Batch batch = to_device(host, TraceDevice::device());
  fake_.set_owner(Owner::activations);
  const AutocastScope autocast(TraceDevice::device(), training_.compute_dtype);
  request_.task.loss(batch, {static_cast<std::uint64_t>(training_.seed), 1});
}

Result<StepTrace> Tracing::run() {
  try {
    RETURN_IF_ERROR(build());
    step(true);
    step(false);
    out_.kernels = fake_.kernels();
    out_.evaluation = fake_.events().size();
    evaluate();
    forget_fake_casts();
  } catch (const c10::Error& error) {
    const bool gpu = request_.device == TraceDevice::Of::gpu;
    return Status::unsupported(
        std::string(error.what_without_backtrace()) +
        (gpu ? "; where the GPU is, octavo plan --measure runs a few steps instead" : ""));
  }
  out_.events = fake_.events();
  return std::move(out_);
}

}  // namespace

Result<StepTrace> trace_step(const TraceRequest& request) { return Tracing(request).run(); }

}  // namespace octavo_train
