// The norm of many gradients at once, and the count of their non-finite elements. The sum runs over fixed
// chunks in double and a fixed tree: the same bits for any number of threads and any backend.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace octavo {

struct GradView {
  const void* data = nullptr;  // aligned to its element
  DType dtype = DType::f32;
  std::int64_t numel = 0;
};

struct GradNorm {
  double l2 = 0.0;             // NaN or infinite where an element is
  double max = 0.0;            // largest magnitude; NaN if any element is NaN
  std::int64_t nonfinite = 0;  // elements that are NaN, infinite, or finite with an infinite square in fp32
};

// Elements of `workspace` that grad_norm needs.
OCTAVO_API std::int64_t grad_norm_workspace(std::span<const GradView> grads);

// `workspace` is written; nothing else is. `threads` 0 means the pool's size.
OCTAVO_API Result<GradNorm> grad_norm(std::span<const GradView> grads, std::span<double> workspace,
                                      int threads = 0);

// The same on the device of the gradients. The host does not wait: `run` leaves the result in the device's
// memory, where StepScalars::norm reads it. A NormGroup keeps pointers, not data, and is used by one thread
// at a time.
class OCTAVO_API NormGroup {
 public:
  static Result<NormGroup> create(Device device, std::span<const GradView> grads);

  NormGroup(NormGroup&&) noexcept;
  NormGroup& operator=(NormGroup&&) noexcept;
  ~NormGroup();

  // `workspace`: at least workspace_bytes(), aligned to 16; `out`: aligned to 8; both on the device. On a GPU
  // the work is queued on `stream` (a cudaStream_t). Pass the same untouched workspace at every run: the
  // table of gradients is then not written again. On the CPU the work is done on return.
  Status run(std::span<std::byte> workspace, GradNorm* out, void* stream = nullptr, int threads = 0);

  // New gradients; on error the old ones stay.
  Status rebind(std::span<const GradView> grads);

  [[nodiscard]] std::int64_t workspace_bytes() const;

 private:
  struct Impl;
  explicit NormGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The factor that scales gradients of norm `l2` (after multiplying by `unscale`) to at most `max_norm`, as
// torch.nn.utils.clip_grad_norm_ computes it (1e-6 in the denominator), times `unscale`:
// StepArgs::grad_factor.
OCTAVO_API double clip_factor(double l2, double max_norm, double unscale = 1.0);

}  // namespace octavo
