// The norm of many gradients at once, and the count of their non-finite elements, on the gradients' device.
// The sum runs over fixed chunks in double and a fixed tree: the bits are equal for any number of threads and
// any backend. Tests and benchmarks use these; the engine makes its backends itself.
// SPDX-License-Identifier: MIT
#pragma once

#include "optimizers/backend.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace octavo {

// Keeps pointers, not data, and is used by one thread at a time.
class NormGroup {
 public:
  static Result<NormGroup> create(Device device, std::span<const GradView> grads);

  // `workspace`: at least workspace_bytes(), aligned to 16; `out`: aligned to 8; both on the device. On a GPU
  // the work is queued on `stream` (a cudaStream_t), and the host does not wait. Pass the same untouched
  // workspace at every run: the table of gradients is then not written again. On the CPU the work is done on
  // return.
  Status run(std::span<std::byte> workspace, GradNorm* out, void* stream = nullptr, int threads = 0);

  // New gradients; on error the old ones stay.
  Status rebind(std::span<const GradView> grads);

  [[nodiscard]] std::int64_t workspace_bytes() const { return backend_->workspace_bytes(); }

 private:
  NormGroup() = default;

  Device device_;
  std::vector<GradView> grads_;
  std::unique_ptr<NormOps> work_;
  std::unique_ptr<NormBackend> backend_;
};

// The norm of gradients in host memory. `workspace` has at least grad_norm_workspace(grads) elements; nothing
// else is written. `threads` 0 means the pool's size.
std::int64_t grad_norm_workspace(std::span<const GradView> grads);
Result<GradNorm> grad_norm(std::span<const GradView> grads, std::span<double> workspace, int threads = 0);

// The factor that scales gradients of norm `l2` (after multiplying by `unscale`) to at most `clip_grad_norm`,
// as torch.nn.utils.clip_grad_norm_ computes it (1e-6 in the denominator), times `unscale`:
// StepArgs::grad_factor.
double clip_factor(double l2, double clip_grad_norm, double unscale = 1.0);

}  // namespace octavo
