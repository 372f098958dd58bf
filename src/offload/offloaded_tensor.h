// A tensor whose state is in host memory: its copies in host memory, and the fences of work on it.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/grad_sums.h"
#include "offload/host_arena.h"
#include "offload/queue.h"

#include "formula/step_args.h"

#include <limits>
#include <memory>

namespace octavo::offload {

struct OffloadedTensor {
  static constexpr std::uint32_t kLast = std::numeric_limits<std::uint32_t>::max();

  // The engine sets these.
  std::uint32_t handle = 0;
  TensorArgs args;  // without a gradient
  Device device;    // of the parameter
  Residence residence = Residence::stream;
  bool grads_in_fp32 = false;   // host gradients are accumulated in fp32, else in their own dtype
  std::uint32_t order = kLast;  // tensors are updated in this order

  // Residence::host: the parameter's copy in host memory. A stale copy must be made again before it is used.
  HostBuffer param_copy;
  bool param_copy_stale = true;
  Fence param_copied;

  // The gradient in host memory. It is complete after `grad_complete`, and its sums after `grad_summed`. The
  // last step has read it after `grad_released`.
  HostBuffer host_grad;
  bool has_host_grad = false;
  DType host_grad_dtype = DType::f32;
  DType device_grad_dtype = DType::f32;  // of the gradients that were copied and added to it
  bool has_grad_sums = false;
  std::shared_ptr<GradSums> grad_sums;  // the host queue writes them
  Fence grad_complete, grad_summed;
  PendingFence grad_released;

  // The gradient in device memory has been copied to the host, or read by a step, after these.
  Fence grad_copied;
  PendingFence grad_read;
  PendingFence weight;  // the weight is up to date after it

  [[nodiscard]] std::int64_t param_bytes() const {
    return args.spec.numel * dtype_bytes(args.spec.param_dtype);
  }
};

// GPUs copy pinned host memory at full speed.
inline bool needs_pinned_memory(Device device) { return device.kind == DeviceKind::cuda; }

}  // namespace octavo::offload
