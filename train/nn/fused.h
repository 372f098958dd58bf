// Shared code of the functions of train/nn that have CUDA kernels: it checks if the kernels support a tensor,
// and prepares their inputs. The gradients of these kernels cannot be differentiated again.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/drop_call.h"
#include "train/nn/dropout.h"
#include "train/nn/fake.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/custom_class.h>
#include <torch/types.h>

#include <cstdint>

namespace octavo_train {

// True if the build has the kernels of train/nn/cuda. The functions that launch them are in every build: on a
// fake device (train/predict) they allocate as on a GPU, and launch nothing.
#if defined(OCTAVO_TRAIN_CUDA)
inline constexpr bool kHasKernels = true;
#else
inline constexpr bool kHasKernels = false;
#endif

// Returns true if the build has code for this GPU. The result is cached per device.
bool has_code_for(const torch::Device& device);

// Returns true if the kernels support the type and device of x: bf16 or fp32 on a GPU. Most kernels also need
// rows of full vectors, which fusible() checks.
inline bool has_kernel_type(const torch::Tensor& x) {
  return (is_fake_gpu(x) || (kHasKernels && x.is_cuda() && has_code_for(x.device()))) &&
         (x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kFloat32) && x.numel() > 0;
}
inline bool fusible(const torch::Tensor& x) {
  return has_kernel_type(x) && x.dim() >= 2 && x.size(-1) % 8 == 0;
}
inline bool is_bf16(const torch::Tensor& x) { return x.scalar_type() == torch::kBFloat16; }

// Returns x as kernels read it: contiguous and aligned to 16 bytes.
inline torch::Tensor kernel_input(const torch::Tensor& x) {
  const torch::Tensor out = x.contiguous();
  return reinterpret_cast<std::uintptr_t>(out.const_data_ptr()) % 16 == 0 ? out : out.clone();
}
// Returns a parameter as kernels read it: fp32, contiguous and aligned to 16 bytes.
inline torch::Tensor kernel_parameter(const torch::Tensor& x) { return kernel_input(x.to(torch::kFloat32)); }

// Makes x's device current for the lifetime of the object, and launches kernels on its stream.
class KernelScope {
 public:
  explicit KernelScope(const torch::Tensor& x);

  // Calls launch(stream), which enqueues kernels that read and write `uses`, and returns null or CUDA's error
  // message. `launch` is a generic lambda, so that a build without the kernels does not reference them. On a
  // fake device nothing is launched; the recorder receives the memory traffic.
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

// The dropout of a function with kernels, kept from its forward pass to its backward pass. Owns the memory
// that `call` points to. Without samples nothing is dropped.
struct KernelMask : torch::CustomClassHolder {
  KernelMask() = default;
  KernelMask(const at::Tensor& x, const Drop& drop) {
    if (!check_dropout(x, drop.probability, drop.training, drop.pass)) return;
    samples = drop.pass.samples.contiguous();
    call = {samples.const_data_ptr<std::int64_t>(), drop.probability, drop.pass.seed, drop.pass.step,
            drop.layer};
  }
  [[nodiscard]] bool drops() const { return samples.defined(); }

  at::Tensor samples;
  cuda::DropoutArgs call;
};

}  // namespace octavo_train
