// SPDX-License-Identifier: MIT
#include "offload/host_params.h"

#include "status/first_error.h"

namespace octavo::offload {

Status reserve_host_params(HostArena& arena, std::span<OffloadedTensor* const> tensors) {
  const auto lacks_memory = [](const OffloadedTensor& tensor) {
    return tensor.param_copy.bytes < tensor.param_bytes();
  };
  std::int64_t expected = 0;
  for (const OffloadedTensor* tensor : tensors) {
    if (lacks_memory(*tensor)) expected += tensor->param_bytes() + 256;
  }
  for (OffloadedTensor* tensor : tensors) {
    if (!lacks_memory(*tensor)) continue;
    auto buffer = arena.allocate(tensor->param_bytes(), expected, needs_pinned_memory(tensor->device));
    if (!buffer.ok()) return buffer.status();
    tensor->param_copy = std::move(*buffer);
    expected -= tensor->param_bytes() + 256;
  }
  return {};
}

Result<Fence> copy_params(std::span<OffloadedTensor* const> tensors, ParamCopy direction,
                          DeviceQueues& queues, const Fence& caller) {
  const bool to_host = direction == ParamCopy::to_host;
  Queue& queue = to_host ? queues.down() : queues.up();
  Status bad = order_after(queue, caller);
  for (const OffloadedTensor* tensor : tensors) {
    if (bad.ok())
      bad = first_error({order_after(queue, tensor->weight), order_after(queue, tensor->param_copied)});
    void* const copy = tensor->param_copy.get();
    void* const param = tensor->args.param;
    if (bad.ok() && tensor->param_bytes() > 0) {
      bad = to_host ? queue.copy(copy, param, tensor->param_bytes(), "weights down")
                    : queue.copy(param, copy, tensor->param_bytes(), "weights up");
    }
  }
  const auto fence = record_fence_unless(bad, queue);
  if (!fence.ok()) return fence;
  for (OffloadedTensor* tensor : tensors) {
    tensor->param_copied = *fence;
    tensor->param_copy_stale = false;
  }
  return fence;
}

}  // namespace octavo::offload
