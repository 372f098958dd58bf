// The work of a device for an Engine, a Group and a NormGroup. These check arguments and forward; one backend
// per device kind does the work (group_cpu.cc; cuda/step/step_backend.cc, or its stub in no_cuda/).
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

  // REQUIRES: addresses that are not null where elements are, aligned, one per tensor.
  virtual Status bind_grads(std::span<const void* const> grads) = 0;
  // REQUIRES: arguments that check_step accepts.
  virtual Result<StepReport> step(const StepArgs& args) = 0;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
  // The workspace was overwritten: the next step writes its tables again.
  virtual void forget_workspace() {}
};

class NormBackend {
 public:
  NormBackend() = default;
  NormBackend(const NormBackend&) = delete;
  NormBackend& operator=(const NormBackend&) = delete;
  virtual ~NormBackend() = default;

  // REQUIRES: as StepBackend.
  virtual Status bind_grads(std::span<const void* const> grads) = 0;
  // REQUIRES: a workspace that is large enough and aligned.
  virtual Status run(std::span<std::byte> workspace, GradNorm* out, void* stream, int threads) = 0;
  // Like run(), but returns the sums of chunks, in the workspace and in the order of the gradients, so that
  // the caller can merge them. Of `out` it writes `max` and `nonfinite`.
  virtual Result<std::span<const double>> run_chunks(std::span<std::byte> workspace, GradNorm* out,
                                                     void* stream, int threads) = 0;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
  virtual void forget_workspace() {}
};

// The other work of a device: it knows whose memory a pointer is, and does arithmetic on a few norms, in
// stream order.
class DeviceWork {
 public:
  DeviceWork() = default;
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;
  virtual ~DeviceWork() = default;

  // An error where `data` (null: none) is not memory of the device.
  virtual Status check_pointer(const std::string& where, const void* data) = 0;
  virtual Status check_stream(const std::string& where, void* stream) = 0;
  // True if the stream is being captured into a graph.
  virtual bool capturing(void* stream) = 0;
  // True if a graph writes into this workspace, now or at its replays.
  virtual bool in_graph(const void* workspace, void* stream) = 0;

  virtual Status clear(GradNorm* out, void* stream) = 0;
  // The previous step's norm with the count of `own`.
  virtual Status borrow(const GradNorm* previous, const GradNorm* own, GradNorm* out, void* stream) = 0;
  // The norm over all parts: squares by a tree of pairs, in their order. REQUIRES: join_bytes of workspace.
  virtual Status join(std::span<const GradNorm* const> parts, std::span<std::byte> workspace, GradNorm* out,
                      void* stream) = 0;
  [[nodiscard]] virtual std::int64_t join_bytes(std::size_t parts) const = 0;
  // The norm of a finished step becomes the previous one if it is finite.
  virtual Status keep(const GradNorm* total, GradNorm* previous, void* stream) = 0;
  // A report without a step: skipped where the norm (null: none) counts elements that are not finite, or
  // found_inf (null: none) is not zero.
  virtual Status tell(const GradNorm* norm, const float* found_inf, StepReport* report, void* stream) = 0;
};

// REQUIRES: tensors that check_tensors accepts, gradients that check_grads accepts, and every address, also
// those of later calls, is memory of the device. `counts`: a step that is taken adds one to each of these,
// too, besides StepScalars::step, which it needs then.
Result<std::unique_ptr<StepBackend>> make_cpu_step(const GroupConfig& config,
                                                   std::span<const TensorArgs> tensors);
Result<std::unique_ptr<StepBackend>> make_cuda_step(const GroupConfig& config,
                                                    std::span<const TensorArgs> tensors,
                                                    std::span<std::int64_t* const> counts = {});
Result<std::unique_ptr<NormBackend>> make_cpu_norm(std::span<const GradView> grads);
Result<std::unique_ptr<NormBackend>> make_cuda_norm(int device, std::span<const GradView> grads);
std::unique_ptr<DeviceWork> make_cpu_work();
// An error where the device cannot be used.
Result<std::unique_ptr<DeviceWork>> make_cuda_work(const std::string& where, int device);

// The backends of a device.
inline Result<std::unique_ptr<NormBackend>> make_norm(Device device, std::span<const GradView> grads) {
  return device.kind == DeviceKind::cpu ? make_cpu_norm(grads) : make_cuda_norm(device.index, grads);
}
inline Result<std::unique_ptr<DeviceWork>> make_work(const std::string& where, Device device) {
  if (device.kind == DeviceKind::cpu) return make_cpu_work();
  return make_cuda_work(where, device.index);
}

}  // namespace octavo
