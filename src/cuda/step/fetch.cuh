// Reads and writes a lane's share of a quick tile: where the share is, and how it gets into registers.
//
// If the architecture has asynchronous copies, everything that a tile needs is fetched to one of the warp's
// two stages in shared memory while the previous tile is processed. A lane reads only what it fetched itself,
// so lanes need not wait for each other. Unaligned gradients are the exception: the complete warp sorts them.
// Without asynchronous copies, the same functions load from global memory.
//
// `kKnown`: the unit is usual (StepUnits::kUsual), so its types and its block size are known at compile time.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/units.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class StepFetching : protected StepUnits<Algo, Format, kKind> {
  using Base = StepUnits<Algo, Format, kKind>;

 public:
  using Base::Base;

 protected:
  using Traits = StepTraits<Algo, Format>;
  using Base::entry, Base::kEnd, Base::kFetches, Base::kOtherWidth, Base::kUnaligned, Base::kUsual,
      Base::lane_, Base::quick, Base::stage, Traits::kSlots, Traits::own_scale, typename Base::Arrays,
      typename Base::Eights, typename Base::Work, typename Traits::QuickPlace;

  // Returns the lane's first elements in a tile without blocks.
  static __device__ std::uint32_t first_of(const Work& work, std::uint32_t lane) {
    return work.index * (kTile / kUnit<true>)+lane;
  }
  static constexpr std::uint32_t kHalfTile = kTile / 2 / kUnit<true>;

  // Returns a lane's share of a quick tile.
  template <bool kKnown>
  static __device__ QuickPlace place_of(const Work& work, const TensorEntry& t, std::uint32_t lane) {
    QuickPlace p{first_of(work, lane), kHalfTile, 0, 0, 0};
    if constexpr (Format::kBlocked) p = Traits::template quick_place<kKnown>(t, work.index, lane);
    if constexpr (!kKnown) {
      if ((work.flags & kEnd) != 0) p = place_at_end(t, work.index, p);
      if constexpr (Format::kBlocked) p.block = p.first >> (28 - __clz(t.block));
    }
    return p;
  }
  // At the end of a tensor, lanes without elements repeat the work of other lanes and write the same bytes: a
  // missing chunk is replaced by another one of its lane or of its block, and a missing block by the tile's
  // first. Without blocks, the second half of the tile begins earlier.
  static __device__ QuickPlace place_at_end(const TensorEntry& t, std::uint32_t tile, QuickPlace p) {
    constexpr int kUnitHere = kUnit<Arrays::kQuads>;
    const auto left = static_cast<std::uint32_t>((t.numel - std::int64_t{tile} * kTile) / kUnitHere);
    if constexpr (!Format::kBlocked) {
      p.apart = left - kHalfTile;
    } else {
      const std::uint32_t start = tile * (kTile / kUnitHere);
      std::uint32_t block = p.first - start - p.lane;  // its first chunk in the tile
      if (block >= left) {
        p.first -= block;
        block = 0;
      }
      if (p.first - start >= left) p.first = start + block;
      if (p.first - start + p.apart >= left) p.apart = 0;
    }
    return p;
  }

  // Returns the first element of a position.
  static __device__ std::int64_t element(std::uint32_t place) {
    return std::int64_t{kUnit<Arrays::kQuads>} * place;
  }

  // Starts the copies that a quick unit needs.
  __device__ void fetch(const Work& work) const {
    if constexpr (kFetches) {
      if (!quick(work)) return;
      if ((work.flags & kUsual) != 0) {
        fetch_arrays<true>(entry(work), work, lane_, std::make_integer_sequence<int, kSlots>{});
      } else {
        fetch_other(entry(work), work, lane_);
      }
    }
  }
  static __device__ __noinline__ void fetch_other(const TensorEntry& t, Work work, std::uint32_t lane) {
    fetch_arrays<false>(t, work, lane, std::make_integer_sequence<int, kSlots>{});
  }
  template <bool kKnown, int... kSlot>
  static __device__ void fetch_arrays(const TensorEntry& t, const Work& work, std::uint32_t lane,
                                      std::integer_sequence<int, kSlot...>) {
    const Stage to{work.stage, lane};
    // Everything that is needed of the entry is loaded before the first copy, which prevents the compiler
    // from reordering.
    const auto [param, grad] = pointers_at(&t.param, &t.grad);
    const auto [first_codes, second_codes] = pointers_at(&t.codes[0], &t.codes[1]);
    const auto [third_codes, residual] = pointers_at(&t.codes[2], &t.residual);
    const void* const codes[] = {first_codes, second_codes, third_codes};
    const QuickPlace where = place_of<kKnown>(work, t, lane);
    const std::uint32_t first = where.first;
    const std::uint32_t apart = where.apart;
    if constexpr (Format::kBlocked) {
      const auto [first_scales, second_scales] = pointers_at(&t.scales[0], &t.scales[1]);
      const float* const scales[] = {first_scales, second_scales, kSlots > 2 ? t.scales[2] : nullptr};
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
        if (!own_scale(k)) copy_async<4, false>(Arrays::scale_at(to, k), scales[k] + where.block);
    }
    Arrays::Param::fetch(to, param, first, apart);
    if constexpr (Arrays::kResidualBits > 0) Arrays::Residual::fetch(to, residual, first, apart);
    if constexpr (!kKnown) {
      fetch_grads(t, work, to, where);
    } else {
      Arrays::template Grad<Arrays::kWideWeights>::fetch(to, grad, first, apart);
    }
    (Arrays::template Codes<kSlot>::fetch(to, codes[kSlot], first, apart), ...);
  }
  static __device__ void fetch_grads(const TensorEntry& t, const Work& work, Stage to,
                                     const QuickPlace& where) {
    with_grads(work, [&]<bool kWide>(std::bool_constant<kWide>) {
      using Grad = typename Arrays::template Grad<kWide>;
      const bool unaligned = (work.flags & kUnaligned) != 0;
      if constexpr (Arrays::halved(kWide)) {
        if (!unaligned) Grad::template fetch_chunk<0>(to, Grad::at(t.grad, where.first));
      } else if (unaligned) {
        Grad::fetch_words(to, tile_of<kWide>(work, t), bytes_of<kWide>(work, t));
      } else {
        Grad::fetch(to, t.grad, where.first, where.apart);
      }
    });
  }
  // Unaligned gradients were copied in the order of memory. This moves them to where the lanes read them.
  static __device__ __noinline__ void sort_grads(const TensorEntry& t, Work work, std::uint32_t lane) {
    with_grads(work, [&]<bool kWide>(std::bool_constant<kWide>) {
      if constexpr (!Arrays::halved(kWide)) {
        const QuickPlace where = place_of<false>(work, t, lane);
        const std::uint32_t start = work.index * (kTile / kUnit<Arrays::kQuads>);
        Arrays::template Grad<kWide>::sort_words({work.stage, lane}, tile_of<kWide>(work, t),
                                                 bytes_of<kWide>(work, t), where.first - start, where.apart);
      }
    });
  }
  // Calls f(true if gradients are fp32).
  template <class Fn>
  static __device__ void with_grads(const Work& work, Fn&& f) {
    if ((work.flags & kOtherWidth) == 0) {
      f(std::bool_constant<Arrays::kWideWeights>{});
    } else {
      f(std::bool_constant<!Arrays::kWideWeights>{});
    }
  }
  // Returns where a tile's gradients begin and their number of bytes.
  template <bool kWide>
  static __device__ const char* tile_of(const Work& work, const TensorEntry& t) {
    return static_cast<const char*>(t.grad) + std::int64_t{work.index} * (kTile * (kWide ? 4 : 2));
  }
  template <bool kWide>
  static __device__ std::uint32_t bytes_of(const Work& work, const TensorEntry& t) {
    const std::int64_t left = t.numel - std::int64_t{work.index} * kTile;
    return static_cast<std::uint32_t>(min(left, std::int64_t{kTile})) * (kWide ? 4 : 2);
  }
  // Returns the scale of the lane's block.
  __device__ float scale_of_block(const Work& work, int slot, std::uint32_t block) const {
    if constexpr (kStaged) return __uint_as_float(shared_load<unsigned>(Arrays::scale_at(stage(work), slot)));
    return entry(work).scales[slot][block];
  }
  // Returns a lane's share of an array, fetched or not.
  template <int kIndex, class Array>
  __device__ typename Array::Share share(const Work& work, const void* base, std::uint32_t at) const {
    if constexpr (kStaged) return Array::template read<kIndex>(stage(work));
    return Array::get(base, at);
  }
  template <int kIndex>
  __device__ void load_weights(const Work& work, const TensorEntry& t, std::uint32_t at, Eights& p) const {
    p.param = share<kIndex, typename Arrays::Param>(work, t.param, at);
    if constexpr (Arrays::kResidualBits > 0)
      p.residual = share<kIndex, typename Arrays::Residual>(work, t.residual, at);
  }
  static __device__ void store_weights(const TensorEntry& t, std::uint32_t at, const Eights& p,
                                       std::uint32_t further = 0) {
    Arrays::Param::put(t.param, at, p.param, further);
    if constexpr (Arrays::kResidualBits > 0) Arrays::Residual::put(t.residual, at, p.residual, further);
  }
  template <int kIndex, bool kKnown>
  __device__ void load_grads(const Work& work, const TensorEntry& t, std::uint32_t at, float* out) const {
    if (kKnown || (work.flags & kOtherWidth) == 0) {
      unpack_grads<kKnown>(share_of_grads<kIndex, Arrays::kWideWeights>(work, t, at), t, out);
    } else {
      unpack_grads<false>(share_of_grads<kIndex, !Arrays::kWideWeights>(work, t, at), t, out);
    }
  }
  template <int kIndex, bool kWide>
  __device__ auto share_of_grads(const Work& work, const TensorEntry& t, std::uint32_t at) const {
    using Grad = typename Arrays::template Grad<kWide>;
    if constexpr (kStaged && !Arrays::halved(kWide)) {
      return Grad::template read<kIndex>(stage(work));
    } else if ((work.flags & kUnaligned) != 0) {
      return Grad::get_any(t.grad, at);
    } else if constexpr (!kStaged) {
      return Grad::get(t.grad, at);
    } else {
      // The second chunk is fetched to the same location while the first one is processed.
      if constexpr (kIndex == 1) wait_all_copies();
      const auto words = Grad::template read<0>(stage(work));
      if constexpr (kIndex == 0) {
        Grad::template fetch_chunk<0>(stage(work),
                                      Grad::at(t.grad, at + place_of<false>(work, t, lane_).apart));
        end_of_copies();
      }
      return words;
    }
  }
};

}  // namespace octavo::cuda
