// SPDX-License-Identifier: MIT
#include "buffer_means.h"

#include <torch/torch.h>

#include <algorithm>

namespace octavo::train {
namespace {

torch::Tensor one_after_the_other(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> rows;
  for (const torch::Tensor& each : tensors) rows.push_back(each.flatten());
  return torch::cat(rows);
}

void give_back(const std::vector<torch::Tensor>& tensors, const torch::Tensor& all) {
  std::vector<torch::Tensor> parts;
  std::int64_t begin = 0;
  for (const torch::Tensor& each : tensors) {
    parts.push_back(all.narrow(0, begin, each.numel()).view(each.sizes()));
    begin += each.numel();
  }
  at::_foreach_copy_(tensors, parts);
}

}  // namespace

BufferMeans::BufferMeans(World& world, const NamedTensors& buffers) : world_(world) {
  if (world.ranks() == 1) return;
  for (const auto& [name, tensor] : buffers) {
    auto kind = std::ranges::find_if(kinds_, [type = tensor.scalar_type()](const Kind& each) {
      return each.buffers[0].scalar_type() == type;
    });
    if (kind == kinds_.end()) kind = kinds_.insert(kind, Kind{});
    kind->buffers.push_back(tensor);
  }
}

void BufferMeans::begin() {
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) {
    if (kind.buffers[0].is_floating_point()) kind.before = one_after_the_other(kind.buffers);
  }
}

void BufferMeans::share() {
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) {
    const torch::Tensor now = one_after_the_other(kind.buffers);
    if (!kind.before.defined()) {
      const torch::Tensor most = now.to(torch::kInt64);  // groups know no bool
      world_.all_reduce(most, World::Reduce::max).wait();
      give_back(kind.buffers, most);
      continue;
    }
    // Equal infinities have no difference either.
    torch::Tensor change = (now - kind.before).masked_fill_(now == kind.before, 0);
    world_.all_reduce(change).wait();
    give_back(kind.buffers, kind.before + change.div_(world_.ranks()));
  }
}

}  // namespace octavo::train
