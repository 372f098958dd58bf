// The step on a GPU: one launch over all tensors of a group, one template for every algorithm, format and
// weight store. A warp processes a tile of 512 elements: load, decode, formula, maximum, encode, store,
// without leaving its registers and without waiting for another warp.
//
// Step is a chain of classes, one per file: the next tile (units.cuh), its path to registers (fetch.cuh), the
// formula over eight elements (update.cuh), a tile with blocks (block_tile.cuh) or without (plain_tile.cuh),
// and the first pass of a trust ratio (trust_ratio_pass.cuh). Chunks that are complete, aligned (gradients
// may have any address) and in range use these vectorized paths without branches. All others are processed
// element by element in the scalar lane (slow_path.cuh), with the same results.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/slow_path.cuh"
#include "cuda/step/trust_ratio_pass.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class Step : StepTrustRatio<Algo, Format, kKind> {
  using Base = StepTrustRatio<Algo, Format, kKind>;
  using Slow = SlowStep<Algo, Format, kKind>;
  using Base::broadcast_unit, Base::request_unit, Base::entry, Base::fetch, Base::finish, Base::kFetches,
      Base::kLarge, Base::kQuick, Base::kUnaligned, Base::kUsual, Base::lane_, Base::large_unit,
      Base::nothing, Base::params_, Base::prepared_, Base::quick, Base::sort_grads, Base::stages_,
      Base::unit_of, typename Base::Arrays, typename Base::Work;

 public:
  using Base::Base, Base::kHasQuick, Base::kTogether, typename Base::Map;

  // Processes a few neighbouring units at a time until none are left, so that warps with slow units get
  // fewer. The next units are requested early, because the answer takes as long as a memory access.
  // `kSumsOnly`: the first of a rule's two passes, which writes only sums.
  template <bool kSumsOnly>
  __device__ void run(std::uint32_t warps) const {
    std::uint32_t unit = unit_of(broadcast_unit(request_unit()));
    std::uint32_t requested = request_unit();
    Work now{};
    if (unit < params_.units) {
      now = Base::template find<kSumsOnly>(unit, nothing());
      now.stage = stages_;
      fetch(now);
    }
    if constexpr (kFetches) end_of_copies();
    bool more = unit < params_.units;
    while (more) {
      const std::uint32_t this_unit = unit;
      if (++unit % kTogether == 0 || unit > params_.grouped) {
        unit = unit_of(broadcast_unit(requested));
        if (unit < params_.units) requested = request_unit();
      }
      more = unit < params_.units;
      Work next;
      if (more) {
        next = now;
        ++next.index;
        if (unit != this_unit + 1 || next.index >= now.quick_units)
          next = Base::template find<kSumsOnly>(unit, now);
        next.stage = now.stage == stages_ ? stages_ + Arrays::kStageBytes : stages_;
        fetch(next);
      }
      if constexpr (kFetches) {
        end_of_copies();
        wait_copies();
      }
      if (quick(now) || large_unit(now)) {
        tile<kSumsOnly>(now);
      } else {
        slow<kSumsOnly>(now);
      }
      now = next;
    }
    finish(warps);
  }

 private:
  template <bool kSumsOnly>
  __device__ void slow(const Work& now) const {
    const TensorEntry& t = entry(now);
    const std::int64_t at = static_cast<std::int64_t>(now.index) * (t.block > kTile ? t.block : kTile);
    if constexpr (kSumsOnly) {
      Slow::sum_unit(params_, prepared_, t, at);
    } else {
      Slow::run(prepared_, t, at);
    }
  }
  // Processes a quick tile, or a slow one if it turns out to be slow.
  template <bool kSumsOnly>
  __device__ void tile(Work& now) const {
    if constexpr (kQuick) {
      if ((now.flags & kUsual) != 0) {
        if (!tile<kSumsOnly, true>(now)) slow<kSumsOnly>(now);
      } else {
        if (kStaged && (now.flags & (kUnaligned | kLarge)) == kUnaligned) sort_grads(entry(now), now, lane_);
        if (!tile<kSumsOnly, false>(now)) slow<kSumsOnly>(now);
      }
    }
  }
  // Returns false if an element of the warp is out of range; then nothing was written.
  template <bool kSumsOnly, bool kKnown>
  __device__ bool tile(Work& now) const {
    if constexpr (kSumsOnly) {
      return Base::template sum_tile<kKnown>(now);
    } else {
      return Base::template step_tile<kKnown>(now);
    }
  }
};

template <bool kSumsOnly, class Algo, class Format, WeightKind kKind>
__device__ inline void run_step(const StepParams& params) {
  start_pass<Format>(params, [&](const Prepared& prepared, std::uint32_t warp, std::uint32_t warps) {
    Step<Algo, Format, kKind>(params, prepared, warp).template run<kSumsOnly>(gridDim.x * warps);
  });
}

template <class Algo, class Format, WeightKind kKind>
__global__ void __launch_bounds__(Step<Algo, Format, kKind>::Map::threads(kArch), 1)
    step_kernel(const __grid_constant__ StepParams params) {
  run_step<false, Algo, Format, kKind>(params);
}

// The first pass of a rule with a trust ratio.
template <class Algo, class Format, WeightKind kKind>
__global__ void __launch_bounds__(Step<Algo, Format, kKind>::Map::threads(kArch), 1)
    trust_ratio_kernel(const __grid_constant__ StepParams params) {
  run_step<true, Algo, Format, kKind>(params);
}

}  // namespace octavo::cuda
