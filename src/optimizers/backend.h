// What a device does for a Group, a NormGroup and an Engine. The public classes check arguments and forward;
// one backend per device kind does the work (group_cpu.cc; cuda/step/step_backend.cc, or its stub in
// no_cuda/).
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/grad_norm.h>
#include <octavo/optimizer.h>

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
  // Somebody else has written into the workspace: what is kept there must be written again.
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
  // As `run`, for who joins the sums of chunks with others: returns where they are in the workspace, in the
  // order of the gradients. Of `out` `max` and `nonfinite` are written.
  virtual Result<std::span<const double>> run_chunks(std::span<std::byte> workspace, GradNorm* out,
                                                     void* stream, int threads) = 0;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
  virtual void forget_workspace() {}
};

// What an Engine asks of a device besides steps and norms: where pointers are, and arithmetic on a few norms,
// in stream order.
class NormOps {
 public:
  NormOps() = default;
  NormOps(const NormOps&) = delete;
  NormOps& operator=(const NormOps&) = delete;
  virtual ~NormOps() = default;

  // An error where `data` (null: none) is not memory of the device.
  virtual Status check_pointer(const std::string& where, const void* data) = 0;
  virtual Status check_stream(const std::string& where, void* stream) = 0;
  // Whether what is queued on the stream goes into a graph.
  virtual bool capturing(void* stream) = 0;
  // Whether a graph writes into this workspace, now or at its replays.
  virtual bool in_graph(const void* workspace, void* stream) = 0;

  virtual Status clear(GradNorm* out, void* stream) = 0;
  // The previous step's norm with the count of `own`.
  virtual Status copy_previous(const GradNorm* previous, const GradNorm* own, GradNorm* out,
                               void* stream) = 0;
  // The norm over all parts: squares by a tree of pairs, in their order. REQUIRES: join_bytes of workspace.
  virtual Status join(std::span<const GradNorm* const> parts, std::span<std::byte> workspace, GradNorm* out,
                      void* stream) = 0;
  [[nodiscard]] virtual std::int64_t join_bytes(std::size_t parts) const = 0;
  // The norm of a step that is over becomes the previous one, where it is finite.
  virtual Status store_previous(const GradNorm* total, GradNorm* previous, void* stream) = 0;
  // A report without a step: skipped where the norm (null: none) counts elements that are not finite, or
  // found_inf (null: none) is not zero.
  virtual Status write_report(const GradNorm* norm, const float* found_inf, StepReport* report,
                              void* stream) = 0;
};

// Whether the addresses that a backend gets are known to be memory of its device, now and in bind_grads.
enum class Addresses { unknown, checked };

// REQUIRES: tensors that check_tensors accepts, gradients that check_grads accepts. `counts`: a step that is
// taken adds one to each of these, too, besides StepScalars::step, which it needs then.
Result<std::unique_ptr<StepBackend>> make_cpu_step(const GroupConfig& config,
                                                   std::span<const TensorArgs> tensors);
Result<std::unique_ptr<StepBackend>> make_cuda_step(const GroupConfig& config,
                                                    std::span<const TensorArgs> tensors,
                                                    Addresses addresses = Addresses::unknown,
                                                    std::span<std::int64_t* const> counts = {});
Result<std::unique_ptr<NormBackend>> make_cpu_norm(std::span<const GradView> grads);
Result<std::unique_ptr<NormBackend>> make_cuda_norm(int device, std::span<const GradView> grads,
                                                    Addresses addresses = Addresses::unknown);
std::unique_ptr<NormOps> make_cpu_norm_ops();
// An error where the device cannot be used.
Result<std::unique_ptr<NormOps>> make_cuda_norm_ops(const std::string& where, int device);

}  // namespace octavo
