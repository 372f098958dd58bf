// Cells of lattices on a GPU: their clips, their records, and the probabilities of their arcs.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/runtime/vectors.cuh"
#include "transducer/cuda/loss.h"

namespace octavo::cuda {

inline constexpr std::uint32_t kAllLanes = 0xFFFFFFFFU;
inline constexpr float kMinusInf = -__builtin_huge_valf();
inline constexpr double kNever = -__builtin_huge_val();
inline constexpr double kNotANumber = __builtin_nan("");
inline constexpr float kLog2e = 1.44269504088896340736F;

struct CellPlace {
  std::int32_t clip, t, u;
  std::int32_t frames, labels;
};

// Returns the last clip whose `first_of` is not above `at`, for a complete warp, which compares 32 clips at a
// time.
template <class First>
__device__ inline std::int32_t clip_before(const TransducerLattice& l, std::int64_t at, First&& first_of) {
  std::int32_t count = 0;
  for (std::int32_t base = 0; base < l.batch; base += 32) {
    const std::int32_t clip = base + static_cast<std::int32_t>(threadIdx.x % 32);
    const std::uint32_t votes = __ballot_sync(kAllLanes, clip < l.batch && first_of(l.clips[clip]) <= at);
    count += __popc(votes);
    if (votes != kAllLanes) break;
  }
  return count - 1;
}

__device__ inline CellPlace place_of(const TransducerLattice& l, std::int64_t cell) {
  const std::int32_t clip = clip_before(l, cell, [](const TransducerClip& c) { return c.first; });
  const TransducerClip& c = l.clips[clip];
  const std::int64_t own = cell - c.first;
  const std::int64_t row = c.labels + 1;
  const auto t = static_cast<std::int32_t>(
      (own >> 32) == 0 ? static_cast<std::uint32_t>(own) / static_cast<std::uint32_t>(row) : own / row);
  return {clip, t, static_cast<std::int32_t>(own - t * row), c.frames, c.labels};
}

// Returns the label after position u < labels, or -1 if it is not a token, which makes the loss NaN.
__device__ inline std::int32_t label_of(const TransducerLattice& l, std::int32_t clip, std::int32_t u) {
  const std::int64_t label = l.targets[clip * l.target_stride + u];
  return label >= 0 && label < l.tokens && label != l.blank ? static_cast<std::int32_t>(label) : -1;
}

__device__ inline float lane_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Results below the normal numbers are zero.
__device__ inline float exp2_fast(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// The sum of exp(x - most) over the added values, in base 2: `most` is the maximum times log2(e). A NaN stays
// in the sum, and -inf adds nothing.
struct ExpSum {
  float most = kMinusInf, sum = 0.0F;

  template <int kOf>
  __device__ void add(const float* x) {
    float top = x[0];
#pragma unroll
    for (int i = 1; i < kOf; ++i) top = fmaxf(top, x[i]);
    const float more = fmaxf(most, __fmul_rn(top, kLog2e));
    const float base = more == kMinusInf ? 0.0F : more;
    float s = most == more ? sum : __fmul_rn(sum, exp2_fast(most - base));
#pragma unroll
    for (int i = 0; i < kOf; ++i) s += exp2_fast(__fmaf_rn(x[i], kLog2e, -base));
    most = more;
    sum = s;
  }
  __device__ void join(const ExpSum& other) {
    const float more = fmaxf(most, other.most), base = more == kMinusInf ? 0.0F : more;
    const float mine = __fmul_rn(sum, exp2_fast(most - base)),
                its = __fmul_rn(other.sum, exp2_fast(other.most - base));
    sum = mine + its;
    most = more;
  }
  // Returns the log of the sum over a warp's lanes to every lane.
  __device__ float log_of_lanes() {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      ExpSum other;
      other.most = __shfl_xor_sync(kAllLanes, most, step);
      other.sum = __shfl_xor_sync(kAllLanes, sum, step);
      join(other);
    }
    if (most == kMinusInf)
      return sum == 0.0F ? static_cast<float>(kNotANumber)
                         : sum;  // without a finite maximum, as in log-softmax
    return __fmaf_rn(most, 0.693147180559945309F, logf(sum));
  }
};

// Returns the divisor of a clip's loss.
__device__ inline double clip_divisor(const TransducerLattice& l, std::int32_t clip) {
  const auto at_least_one = [](std::int64_t count) { return static_cast<double>(count > 0 ? count : 1); };
  switch (l.reduction) {
    case TransducerReduction::mean_batch:
      return l.batch;
    case TransducerReduction::mean:
      return l.batch * at_least_one(l.clips[clip].labels);
    case TransducerReduction::mean_volume:
      return at_least_one(l.head->labels);
    default:
      return 1.0;
  }
}
// Returns the factor of the gradient of a clip's loss: NaN if the workspace belongs to another loss.
__device__ inline float clip_factor(const TransducerLattice& l, std::int32_t clip, const float* grad_losses) {
  if (l.head->key != l.key) return static_cast<float>(kNotANumber);
  const bool own = l.reduction == TransducerReduction::none;
  return static_cast<float>(static_cast<double>(grad_losses[own ? clip : 0]) / clip_divisor(l, clip));
}

// The probabilities, times the factor, that an alignment emits anything in this cell, blank, and the label.
struct CellShares {
  float all, blank, label;
};

// Runs on a complete warp; one lane calls `put(i, gradient)` for the gradient of each duration's logit.
template <class Put>
__device__ inline CellShares shares_of(const TransducerLattice& l, std::int64_t cell, const CellPlace& p,
                                       float factor, Put&& put) {
  const int lane = threadIdx.x % 32;
  const double log_p = l.log_p[p.clip], alpha = l.alpha[cell];
  const bool rnnt = l.durations == 0;
  const float* const r = l.records + cell * l.width();
  const std::int32_t arcs = rnnt ? 1 : l.durations;
  const std::int64_t row = p.labels + 1;
  float blank = 0.0F, label = 0.0F, own[2] = {0.0F, 0.0F};
  if (log_p != kNever && alpha != kNever) {
    const double base = alpha - log_p;
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      const int i = lane + 32 * turn;
      if (i >= arcs) break;
      const std::int32_t left = p.frames - p.t, by_blank = rnnt ? 1 : l.advance[i],
                         by_label = rnnt ? 0 : l.advance[i];
      const float q = rnnt ? 0.0F : r[3 + i];
      const auto share = [&](float token, double after) {
        return after == kNever ? 0.0F
                               : expf(static_cast<float>(
                                     base + after + (static_cast<double>(token) + static_cast<double>(q))));
      };
      float b = 0.0F, y = 0.0F;
      if (by_blank >= 1 && by_blank < left) b = share(r[1], l.beta[cell + by_blank * row]);
      if (by_blank >= 1 && by_blank == left && p.u == p.labels) b = share(r[1], 0.0);
      if (p.u < p.labels && by_label < left) y = share(r[2], l.beta[cell + by_label * row + 1]);
      blank += b;
      label += y;
      own[turn] = b + y;
    }
  }
  blank = lane_sum(blank) * factor;
  label = lane_sum(label) * factor;
  const float all = blank + label;
  for (int i = lane, turn = 0; i < l.extra; i += 32, ++turn) {
    const float taken = turn == 0 ? own[0] : own[1];
    put(i, rnnt || all == 0.0F ? 0.0F : expf(r[3 + i]) * all - taken * factor);
  }
  return {all, blank, label};
}

}  // namespace octavo::cuda
