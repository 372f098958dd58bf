// The interface of a device for an Engine, a Group and a NormGroup. These check arguments and forward; one
// backend per device kind does the work (group_cpu.cc; cuda/step/step_backend.cc, or its stub in no_cuda/).
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <octavo/status.h>

#include <memory>
#include <span>
#include <string>

namespace octavo {

class StepBackend {
 public:
  StepBackend() = default;
  StepBackend(const StepBackend&) = delete;
  StepBackend& operator=(const StepBackend&) = delete;
  virtual ~StepBackend() = default;

  // REQUIRES: one aligned address per tensor, not null if the tensor has elements.
  virtual Status bind_grads(std::span<const void* const> grads) = 0;
  // REQUIRES: arguments that check_step accepts.
  virtual Result<StepReport> step(const StepArgs& args) = 0;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
  // Must be called after other code has written into the workspace: the backend then rewrites its tables.
  virtual void forget_workspace() {}
};

class NormBackend {
 public:
  NormBackend() = default;
  NormBackend(const NormBackend&) = delete;
  NormBackend& operator=(const NormBackend&) = delete;
  virtual ~NormBackend() = default;

  // REQUIRES: addresses like those of StepBackend::bind_grads.
  virtual Status bind_grads(std::span<const void* const> grads) = 0;
  // REQUIRES: a workspace that is large enough and aligned.
  virtual Status run(std::span<std::byte> workspace, GradNorm* out, void* stream, int threads) = 0;
  // Like run(), but returns the per-chunk sums in the workspace, in the order of the gradients, so that the
  // caller can merge them. Only `max` and `nonfinite` of `out` are written.
  virtual Result<std::span<const double>> run_chunks(std::span<std::byte> workspace, GradNorm* out,
                                                     void* stream, int threads) = 0;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
  virtual void forget_workspace() {}
};

// The other operations that an Engine needs from a device, in stream order: checks of pointers and streams,
// and arithmetic on a few norms.
class NormOps {
 public:
  NormOps() = default;
  NormOps(const NormOps&) = delete;
  NormOps& operator=(const NormOps&) = delete;
  virtual ~NormOps() = default;

  // Returns an error if `data` is not null and not memory of the device.
  virtual Status check_pointer(const std::string& where, const void* data) = 0;
  virtual Status check_stream(const std::string& where, void* stream) = 0;
  // Returns true if a graph captures the stream's work.
  virtual bool capturing(void* stream) = 0;
  // Returns true if a graph writes into this workspace, now or when it is replayed.
  virtual bool in_graph(const void* workspace, void* stream) = 0;

  virtual Status clear(GradNorm* out, void* stream) = 0;
  // Writes the previous step's norm with the count of non-finite elements in `own`.
  virtual Status copy_previous(const GradNorm* previous, const GradNorm* own, GradNorm* out,
                               void* stream) = 0;
  // Joins the norms of all parts: squares are added by a tree of pairs, in order. REQUIRES: join_bytes of
  // workspace.
  virtual Status join(std::span<const GradNorm* const> parts, std::span<std::byte> workspace, GradNorm* out,
                      void* stream) = 0;
  [[nodiscard]] virtual std::int64_t join_bytes(std::size_t parts) const = 0;
  // Stores the norm of a finished step as the previous norm if it is finite.
  virtual Status store_previous(const GradNorm* total, GradNorm* previous, void* stream) = 0;
  // Writes a report without a step. It says skipped if the norm (null: none) counts non-finite elements, or
  // if found_inf (null: none) is not zero.
  virtual Status write_report(const GradNorm* norm, const float* found_inf, StepReport* report,
                              void* stream) = 0;
};

// REQUIRES: tensors that check_tensors accepts, gradients that check_grads accepts, and addresses, now and in
// later calls, that are memory of the device. An applied step adds one to each of `counts`, besides
// StepScalars::step, which is then required.
Result<std::unique_ptr<StepBackend>> make_cpu_step(const GroupConfig& config,
                                                   std::span<const TensorArgs> tensors);
Result<std::unique_ptr<StepBackend>> make_cuda_step(const GroupConfig& config,
                                                    std::span<const TensorArgs> tensors,
                                                    std::span<std::int64_t* const> counts = {});
Result<std::unique_ptr<NormBackend>> make_cpu_norm(std::span<const GradView> grads);
Result<std::unique_ptr<NormBackend>> make_cuda_norm(int device, std::span<const GradView> grads);
std::unique_ptr<NormOps> make_cpu_norm_ops();
// Returns an error if the device cannot be used.
Result<std::unique_ptr<NormOps>> make_cuda_norm_ops(const std::string& where, int device);

// The backends of a device.
inline Result<std::unique_ptr<NormBackend>> make_norm(Device device, std::span<const GradView> grads) {
  return device.kind == DeviceKind::cpu ? make_cpu_norm(grads) : make_cuda_norm(device.index, grads);
}
inline Result<std::unique_ptr<NormOps>> make_norm_ops(const std::string& where, Device device) {
  if (device.kind == DeviceKind::cpu) return make_cpu_norm_ops();
  return make_cuda_norm_ops(where, device.index);
}

}  // namespace octavo
