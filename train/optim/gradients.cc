// SPDX-License-Identifier: MIT
#include "train/optim/gradients.h"

#include "train/optim/bucket_gradients.h"
#include "train/optim/shards.h"

#include <torch/torch.h>

#include <utility>

namespace octavo_train {

GradientSums::GradientSums(NamedTensors parameters, std::int64_t micro_batches)
    : parameters_(std::move(parameters)), filled_(parameters_.size(), false) {
  for (const auto& [name, param] : parameters_) {
    bytes_ += static_cast<std::int64_t>(param.nbytes());
    const bool own = micro_batches > 1 && param.scalar_type() != torch::kFloat32;
    sums_.push_back(own ? torch::zeros_like(param, torch::TensorOptions(torch::kFloat32)) : torch::Tensor());
    if (own) sum_bytes_ += static_cast<std::int64_t>(sums_.back().nbytes());
  }
  bytes_ += sum_bytes_;
}

void GradientSums::clear() {
  filled_.assign(parameters_.size(), false);
  for (auto& [name, param] : parameters_) param.mutable_grad().reset();
}

void GradientSums::micro_batch_done() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    torch::Tensor& grad = parameters_[i].second.mutable_grad();
    if (!sums_[i].defined() || !grad.defined()) continue;
    if (filled_[i])
      sums_[i].add_(grad);
    else
      sums_[i].copy_(grad);
    filled_[i] = true;
    // If the gradient remained, torch would add the next micro-batch to it in bf16.
    grad.reset();
  }
}

void GradientSums::finish() {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (filled_[i]) parameters_[i].second.mutable_grad() = sums_[i];
  }
}

namespace {

// Returns the parameters whose gradients the optimizer does not offload.
NamedTensors left_here(const NamedTensors& parameters, StepOptimizer& optimizer) {
  NamedTensors out;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!optimizer.offloads_gradient(i)) out.push_back(parameters[i]);
  }
  return out;
}

}  // namespace

OffloadedGradients::OffloadedGradients(NamedTensors parameters, std::int64_t micro_batches,
                                       StepOptimizer& optimizer)
    : optimizer_(optimizer),
      parameters_(std::move(parameters)),
      micro_batches_(micro_batches),
      rest_(left_here(parameters_, optimizer), micro_batches) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (optimizer.offloads_gradient(i)) offloaded_.push_back(i);
  }
}

void OffloadedGradients::clear() {
  rest_.clear();
  for (const std::size_t i : offloaded_) parameters_[i].second.mutable_grad().reset();
  optimizer_.drop_gradients();
}

void OffloadedGradients::micro_batch_done() {
  rest_.micro_batch_done();
  if (micro_batches_ == 1) return;
  for (const std::size_t i : offloaded_) {
    const torch::Tensor& param = parameters_[i].second;
    if (param.scalar_type() != torch::kFloat32 && param.grad().defined()) optimizer_.offload_gradient(i);
  }
}

std::unique_ptr<Gradients> make_gradients(ProcessGroup& process_group, const ParameterGroups& groups,
                                          const TrainingSettings& training, std::int64_t micro_batches,
                                          const ShardedWeights* weights, StepOptimizer* optimizer) {
  const bool one = !process_group.grouped() && process_group.ranks() == 1;
  if (one && training.offload_gradients && optimizer != nullptr)
    return std::make_unique<OffloadedGradients>(groups.parameters, micro_batches, *optimizer);
  if (one) return std::make_unique<GradientSums>(groups.parameters, micro_batches);
  GradientOptions options;
  options.micro_batches = micro_batches;
  options.reduce_in_fp32 = training.reduce_dtype == ReduceType::float32;
  options.each_micro_batch = training.parallel == Parallel::zero2;
  if (weights != nullptr) {
    return std::make_unique<BucketGradients>(process_group, weights->layout(), groups.parameters,
                                             weights->pieces(), options);
  }
  std::vector<torch::Tensor> all;
  for (const auto& [name, param] : groups.parameters) all.push_back(param);
  return std::make_unique<BucketGradients>(
      process_group, make_bucket_layout(groups, process_group.ranks(), /*divided=*/false), groups.parameters,
      std::move(all), options);
}

}  // namespace octavo_train
