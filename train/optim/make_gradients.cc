// SPDX-License-Identifier: MIT
#include "train/optim/make_gradients.h"

#include "train/optim/bucket_gradients.h"
#include "train/optim/bucket_layout.h"

#include <utility>
#include <vector>

namespace octavo_train {

std::unique_ptr<Gradients> make_gradients(ProcessGroup& world, const ParameterGroups& groups,
                                          const TrainingSettings& training, std::int64_t passes,
                                          const ShardedWeights* weights, StepOptimizer* optimizer) {
  const bool one = !world.grouped() && world.ranks() == 1;
  if (one && training.offload_gradients && optimizer != nullptr)
    return std::make_unique<OffloadedGradients>(groups.parameters, passes, *optimizer);
  if (one) return std::make_unique<GradientSums>(groups.parameters, passes);
  GradientOptions plan;
  plan.passes = passes;
  plan.reduce_in_fp32 = training.reduce_dtype == ReduceType::float32;
  plan.each_pass = training.parallel == Parallel::zero2;
  if (weights != nullptr) {
    return std::make_unique<BucketGradients>(world, weights->layout(), groups.parameters, weights->pieces(),
                                             plan);
  }
  std::vector<torch::Tensor> all;
  for (const auto& [name, param] : groups.parameters) all.push_back(param);
  return std::make_unique<BucketGradients>(world, lay_out(groups, world.ranks(), /*divided=*/false),
                                           groups.parameters, std::move(all), plan);
}

}  // namespace octavo_train
