// SPDX-License-Identifier: MIT
#include "nn/fused.h"

#include "nn/cuda/residual.h"

#include <octavo/torch/native.h>

#include <map>
#include <mutex>

namespace octavo::train {

bool has_code_for(const ::torch::Device& device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, bool> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(device.index());
  if (found != known.end()) return found->second;
  const c10::DeviceGuard guard(device);
  return known[device.index()] = cuda::has_code();
}

KernelScope::KernelScope(const ::torch::Tensor& x)
    : guard_(x.device()),
      stream_(octavo::torch::native::handle_of(octavo::torch::native::current_stream(x.device()))) {}

}  // namespace octavo::train
