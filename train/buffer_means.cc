// SPDX-License-Identifier: MIT
#include "buffer_means.h"

#include <torch/torch.h>

#include <map>

namespace octavo::train {

BufferMeans::BufferMeans(World& world, const NamedTensors& buffers) : world_(world) {
  if (world.ranks() == 1) return;
  for (const auto& [name, tensor] : buffers) buffers_.push_back(tensor);
  begin();
}

void BufferMeans::begin() {
  versions_.clear();
  for (const torch::Tensor& each : buffers_) versions_.push_back(each._version());
}

void BufferMeans::share() {
  if (buffers_.empty()) return;
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> changed;
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    changed.push_back(buffers_[i]._version() != versions_[i] ? 1 : 0);
  world_.max(changed);
  std::map<torch::ScalarType, std::vector<torch::Tensor>> kinds;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (changed[i] != 0) kinds[buffers_[i].scalar_type()].push_back(buffers_[i]);
  }
  for (auto& [type, tensors] : kinds) {
    std::vector<torch::Tensor> rows;
    for (const torch::Tensor& each : tensors) rows.push_back(each.flatten());
    const torch::Tensor all = torch::cat(rows);
    const bool counts = !all.is_floating_point();
    world_.all_reduce(all, counts ? World::Reduce::max : World::Reduce::sum).wait();
    if (!counts) all.div_(world_.ranks());
    std::int64_t begin = 0;
    for (torch::Tensor& each : rows) {
      const std::int64_t size = each.numel();
      each = all.narrow(0, begin, size);
      begin += size;
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) rows[i] = rows[i].view(tensors[i].sizes());
    at::_foreach_copy_(tensors, rows);
  }
}

}  // namespace octavo::train
