// The arguments of a step and of a norm, and their results.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/describe.h>
#include <octavo/layout.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace octavo {

struct StateSlot {
  void* codes = nullptr;    // aligned to the code's element (4 for fp32, 2 for bf16, else 1)
  float* scales = nullptr;  // null if the layout has no scales
};

struct TensorArgs {
  TensorSpec spec;
  void* param = nullptr;       // updated in place
  const void* grad = nullptr;  // never written
  void* residual = nullptr;    // for the residual stores
  std::array<StateSlot, kMaxSlots> state{};
  // Stochastic rounding is keyed by (seed, step, id, offset + index): each parameter has an id, and each
  // shard the index of its first element in the complete parameter.
  std::uint64_t id = 0;
  std::int64_t offset = 0;
};

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

struct StepReport {
  bool skipped = false;        // the step was not taken: no parameter or state was written
  bool pending = false;        // on a GPU the outcome is not known when step returns: see StepScalars::report
  std::int64_t nonfinite = 0;  // elements that caused it (counted only with the guard on)
};

// Inputs that may be in the memory of the step's device, so that they can change without the host (a CUDA
// graph, a norm that is still being computed). They are read in stream order; step and report are written in
// stream order. Null: the value in StepArgs is used.
struct StepScalars {
  const float* lr = nullptr;          // instead of hyper.lr
  std::int64_t* step = nullptr;       // steps taken so far; a step that is taken adds one and uses the sum
  const float* loss_scale = nullptr;  // gradients are divided by it, besides grad_factor
  const float* found_inf = nullptr;   // not zero: the step is skipped, as torch's GradScaler expects
  const GradNorm* norm = nullptr;     // of the gradients before any factor: see StepArgs::clip_grad_norm
  StepReport* report = nullptr;       // receives what happened
};

// Called between the two passes of a rule that measures (LARS, LAMB), for tensors of which other ranks hold
// parts: it adds the other ranks' sums. `sums` has two numbers per tensor of the step, in their order: the
// squares of the weights and the squares of the updates. They are in the memory of the step's device, in
// stream order; the hook must not wait for the stream.
struct SumHook {
  void (*add)(void* context, double* sums, std::int64_t count, void* stream) = nullptr;
  void* context = nullptr;
};

struct StepArgs {
  HyperParams hyper{};
  std::int64_t step = 0;        // from 1; sgd's first step stores the plain gradient, as torch does
  double grad_factor = 1.0;     // multiplies every gradient: 1 / loss scale, clipping, or both
  double clip_grad_norm = 0.0;  // with scalars.norm: gradients are clipped to it; 0 does not clip
  bool skip_nonfinite = false;  // a non-finite gradient (or its square) skips the complete step; with
                                // scalars.norm its count decides and the gradients are not read once more
  std::uint64_t seed = 0;       // of stochastic rounding
  int threads = 0;              // CPU; 0: the pool's size
  void* stream = nullptr;       // GPU: the cudaStream_t to work on, of the step's device
  StepScalars scalars{};
  SumHook sums{};
  // At least StepBackend::workspace_bytes(), aligned to 16, on the step's device. On a GPU the backend keeps
  // its table of tensors there: pass the same untouched buffer at every step, and it is not written again.
  std::span<std::byte> workspace{};
};

}  // namespace octavo
