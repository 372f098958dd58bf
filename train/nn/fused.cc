// SPDX-License-Identifier: MIT
#include "train/nn/fused.h"

#include "train/nn/cuda/residual.h"

#include <octavo/torch/native.h>

#include <map>
#include <mutex>

namespace octavo_train {

bool has_code_for([[maybe_unused]] const torch::Device& device) {
  if constexpr (kHasKernels) {
    static std::mutex mutex;
    static std::map<c10::DeviceIndex, bool> known;
    const std::lock_guard lock(mutex);
    const auto found = known.find(device.index());
    if (found != known.end()) return found->second;
    const c10::DeviceGuard guard(device);
    return known[device.index()] = cuda::has_code();
  }
  return false;
}

KernelScope::KernelScope(const torch::Tensor& x) : fake_(x.is_meta()) {
  if (fake_) return;
  guard_.reset_device(x.device());
  stream_ = octavo::torch::native::handle_of(octavo::torch::native::current_stream(x.device()));
}

}  // namespace octavo_train
