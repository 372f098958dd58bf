// SPDX-License-Identifier: MIT
#include "train/optim/sharded_weights.h"

#include <torch/torch.h>

#include <string>
#include <utility>

namespace octavo_train {

Result<std::unique_ptr<ShardedWeights>> ShardedWeights::make(ProcessGroup& world, const OptimizerChoice& plan,
                                                             const ParameterGroups& groups,
                                                             ParallelLayout layout,
                                                             std::int64_t slice_bytes) {
  if (!plan.native) {
    return Status::unsupported(
        "training.parallel: zero1 and zero2 divide the states of Octavo's own optimizers, and " +
        optimizer_text(plan.name) +
        " is plain LibTorch's here, because there is no Octavo code for the device in this build; use "
        "parallel: ddp, or another device");
  }
  return std::unique_ptr<ShardedWeights>(new ShardedWeights(world, groups, std::move(layout), slice_bytes));
}

ShardedWeights::ShardedWeights(ProcessGroup& world, const ParameterGroups& groups, ParallelLayout layout,
                               std::int64_t slice_bytes)
    : world_(world),
      layout_(std::move(layout)),
      slice_bytes_(slice_bytes),
      pieces_(groups.parameters.size()) {
  const torch::NoGradGuard no_grad;
  for (std::size_t b = 0; b < layout_.buckets().size(); ++b) {
    const Bucket& bucket = layout_.buckets()[b];
    const auto options = groups.parameters[bucket.parameters.front()].second.options().requires_grad(false);
    const torch::Tensor flat = torch::zeros({bucket.elements}, options);
    const Piece mine = layout_.chunk(b, world_.rank());
    flats_.push_back(flat);
    chunks_.push_back(flat.narrow(0, mine.begin, mine.elements()));
    padding_bytes_ += static_cast<std::int64_t>(flat.nbytes());
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const std::size_t number = bucket.parameters[k];
      torch::Tensor param = groups.parameters[number].second;
      padding_bytes_ -= static_cast<std::int64_t>(param.nbytes());
      const torch::Tensor place = flat.as_strided(param.sizes(), param.strides(), bucket.begins[k]);
      place.copy_(param);
      param.set_data(place);
      const Piece part = piece(number);
      const bool all = undivided(number) && part.elements() == param.numel();
      pieces_[number] = all ? place.detach() : flat.narrow(0, bucket.begins[k] + part.begin, part.elements());
    }
  }
}

ShardedWeights::~ShardedWeights() = default;

bool ShardedWeights::undivided(std::size_t parameter) const {
  return layout_.buckets()[layout_.bucket_of(parameter)].owner >= 0;
}

void ShardedWeights::gather() {
  std::vector<Pending> queued;
  for (std::size_t b = 0; b < flats_.size(); ++b) {
    if (flats_[b].numel() == 0) continue;
    const int owner = layout_.buckets()[b].owner;
    queued.push_back(owner >= 0 ? world_.broadcast(flats_[b], owner)
                                : world_.all_gather(flats_[b], chunks_[b]));
  }
  for (Pending& each : queued) each.wait();
}

}  // namespace octavo_train
