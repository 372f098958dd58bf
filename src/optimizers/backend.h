// What a device does for a Group and a NormGroup. The public classes check arguments and forward; one backend
// per device kind does the work (group_cpu.cc; cuda/group_cuda.cc, or its stub in no_cuda/).
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/grad_norm.h>
#include <octavo/optimizer.h>

#include <memory>
#include <span>

namespace octavo {

class StepBackend {
 public:
  StepBackend() = default;
  StepBackend(const StepBackend&) = delete;
  StepBackend& operator=(const StepBackend&) = delete;
  virtual ~StepBackend() = default;

  // REQUIRES: addresses that are not null where elements are, aligned, one per tensor.
  virtual Status bind_grads(std::span<const void* const> grads) = 0;
  // REQUIRES: arguments that check_step accepts.
  virtual Result<StepReport> step(const StepArgs& args) = 0;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
};

class NormBackend {
 public:
  NormBackend() = default;
  NormBackend(const NormBackend&) = delete;
  NormBackend& operator=(const NormBackend&) = delete;
  virtual ~NormBackend() = default;

  // REQUIRES: a workspace that is large enough and aligned.
  virtual Status run(std::span<std::byte> workspace, GradNorm* out, void* stream, int threads) = 0;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
};

// REQUIRES: tensors that check_tensors accepts, gradients that check_grads accepts.
Result<std::unique_ptr<StepBackend>> make_cpu_step(const GroupConfig& config,
                                                   std::span<const TensorArgs> tensors);
Result<std::unique_ptr<StepBackend>> make_cuda_step(const GroupConfig& config,
                                                    std::span<const TensorArgs> tensors);
Result<std::unique_ptr<NormBackend>> make_cpu_norm(std::span<const GradView> grads);
Result<std::unique_ptr<NormBackend>> make_cuda_norm(int device, std::span<const GradView> grads);

}  // namespace octavo
