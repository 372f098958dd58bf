// SPDX-License-Identifier: MIT
#include "train/run/buffer_snapshot.h"

#include <torch/torch.h>

#include <algorithm>

namespace octavo_train {
namespace {

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> rows;
  rows.reserve(tensors.size());
  for (const torch::Tensor& each : tensors) rows.push_back(each.flatten());
  return torch::cat(rows);
}

}  // namespace

BufferSnapshot::BufferSnapshot(const NamedTensors& buffers) {
  for (const auto& [name, tensor] : buffers) {
    auto kind = std::ranges::find_if(kinds_, [&](const Kind& each) {
      return each.buffers[0].scalar_type() == tensor.scalar_type() &&
             each.buffers[0].device() == tensor.device();
    });
    if (kind == kinds_.end()) kind = kinds_.insert(kind, Kind{});
    kind->buffers.push_back(tensor);
  }
}

void BufferSnapshot::save() {
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) kind.kept = flat(kind.buffers);
}

void BufferSnapshot::give(Kind& kind, const torch::Tensor& values) {
  std::vector<torch::Tensor> parts;
  std::int64_t begin = 0;
  for (const torch::Tensor& each : kind.buffers) {
    parts.push_back(values.narrow(0, begin, each.numel()).view(each.sizes()));
    begin += each.numel();
  }
  at::_foreach_copy_(kind.buffers, parts);
}

void BufferSnapshot::average_across_ranks(ProcessGroup& process_group) {
  if (process_group.ranks() == 1) return;
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) {
    const torch::Tensor now = flat(kind.buffers);
    if (!now.is_floating_point()) {
      const torch::Tensor most = now.to(torch::kInt64);  // groups know no bool
      process_group.all_reduce(most, ProcessGroup::Reduce::max).wait();
      give(kind, most);
      continue;
    }
    // Equal infinities have no difference either.
    torch::Tensor change = (now - kind.kept).masked_fill_(now == kind.kept, 0);
    process_group.all_reduce(change).wait();
    give(kind, kind.kept + change.div_(process_group.ranks()));
  }
}

void BufferSnapshot::restore_if(const torch::Tensor& skipped) {
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_)
    give(kind, torch::where(skipped.to(kind.kept.device()) != 0, kind.kept, flat(kind.buffers)));
}

void BufferSnapshot::restore() {
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) give(kind, kind.kept);
}

}  // namespace octavo_train
