// What the functions of train/nn with CUDA kernels share: whether a kernel takes a tensor, and how it gets
// it. A kernel's gradient has no gradient of its own.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"
#include "train/nn/fake.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/types.h>

#include <cstdint>

namespace octavo::train {

// Whether the build has the kernels of train/nn/cuda. The functions around them are in every build: on a fake
// device (train/predict) they allocate as on a GPU, and launch nothing.
#if defined(OCTAVO_TRAIN_CUDA)
inline constexpr bool kHasKernels = true;
#else
inline constexpr bool kHasKernels = false;
#endif

// Whether the build has code for that GPU. Asked once of each.
bool has_code_for(const torch::Device& device);

// Activations that the kernels take: bf16 or fp32 on a GPU, and most of them rows of whole vectors.
inline bool has_kernel_type(const torch::Tensor& x) {
  return (is_fake_gpu(x) || (kHasKernels && x.is_cuda() && has_code_for(x.device()))) &&
         (x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kFloat32) && x.numel() > 0;
}
inline bool fusible(const torch::Tensor& x) {
  return has_kernel_type(x) && x.dim() >= 2 && x.size(-1) % 8 == 0;
}
inline bool is_bf16(const torch::Tensor& x) { return x.scalar_type() == torch::kBFloat16; }

// As a kernel reads it: contiguous, from a multiple of sixteen bytes on.
inline torch::Tensor kernel_input(const torch::Tensor& x) {
  const torch::Tensor out = x.contiguous();
  return reinterpret_cast<std::uintptr_t>(out.const_data_ptr()) % 16 == 0 ? out : out.clone();
}
// The same of a parameter, in fp32.
inline torch::Tensor kernel_parameter(const torch::Tensor& x) { return kernel_input(x.to(torch::kFloat32)); }

// The stream of x's device, with that device current.
class KernelScope {
 public:
  explicit KernelScope(const torch::Tensor& x);

  // launch(stream) queues kernels that read and write `uses` and returns null, or what CUDA says is wrong. It
  // is a generic lambda, so that a build without the kernels does not ask for them. On a fake device nothing
  // is launched; its recorder is told of the memory.
  template <class F>
  void run(const char* name, at::TensorList uses, const F& launch) const {
    if (fake_) return record_kernel(name, uses);
    if constexpr (kHasKernels) {
      const char* const problem = launch(stream_);
      TORCH_CHECK(problem == nullptr, name,
                  ": its kernels did not start: ", problem == nullptr ? "" : problem);
    }
  }

 private:
  bool fake_;
  c10::OptionalDeviceGuard guard_;
  void* stream_ = nullptr;
};

inline void check_first_gradient(const char* name) {
  TORCH_CHECK(!at::GradMode::is_enabled(), name,
              ": its kernels have no second gradient; call backward without create_graph");
}

}  // namespace octavo::train
