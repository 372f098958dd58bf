// Copies of parameters in host memory, of tensors that the CPU steps. A copy is made before the first step,
// after the tensor was registered again, and when the caller says that one side was written.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/offloaded_tensor.h"

#include <span>

namespace octavo::offload {

enum class ParamCopy { to_host, to_device };

// Allocates memory for the copies of `tensors`, which have Residence::host.
Status reserve_host_params(HostArena& arena, std::span<OffloadedTensor* const> tensors);
// Copies parameters after the caller's fence. REQUIRES: tensors of one device with reserved copies. Returns
// the fence of the copies.
Result<Fence> copy_params(std::span<OffloadedTensor* const> tensors, ParamCopy direction,
                          DeviceQueues& queues, const Fence& caller);

}  // namespace octavo::offload
