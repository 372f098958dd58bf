// The norm of many gradients at once, and the count of their non-finite elements. The sum runs over fixed
// chunks in double and a fixed tree: the same bits for any number of threads and any backend.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstdint>
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

// The factor that scales gradients of norm `l2` (after multiplying by `unscale`) to at most `max_norm`, as
// torch.nn.utils.clip_grad_norm_ computes it (1e-6 in the denominator), times `unscale`:
// StepArgs::grad_factor.
OCTAVO_API double clip_factor(double l2, double max_norm, double unscale = 1.0);

}  // namespace octavo
