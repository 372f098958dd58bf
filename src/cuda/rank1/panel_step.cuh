// The step of tensors with rank-1 scales by panels (cuda/step/tensor_table.h, Rank1View). It works like
// cuda/step/step_kernel.cuh, but a warp's next tile is below, not to the right. So the scales of a lane's
// eight columns stay in the lane for a complete panel, and those of the rows are a shuffle away. A tile is
// two steps down a strip: a lane's two chunks are in two rows, and in two blocks. Requests for work, arrays
// and the formula are those of Step (cuda/step/update.cuh and its base classes).
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/rank1/scales.cuh"
#include "cuda/step/slow_path.cuh"
#include "cuda/step/update.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class PanelStep : StepUpdate<Algo, Format, kKind> {
  using Base = StepUpdate<Algo, Format, kKind>;
  using Traits = StepTraits<Algo, Format>;
  using Slow = SlowStep<Algo, Format, kKind>;
  using Base::broadcast_unit, Base::request_unit, Base::kFetches, Base::kOtherWidth, Base::kUnaligned,
      Base::kUsual, Base::lane_, Base::params_, Base::prepared_, Traits::kDivides, Traits::kDividesGradient,
      Traits::kOwn, Traits::kOwnSlots, Traits::kSlots, Traits::kStates, Traits::largest, Traits::moment,
      Traits::own_index, Traits::own_scale, typename Base::Arrays, typename Base::Eights, typename Base::Work,
      typename Traits::Bounds, typename Traits::Codes, typename Traits::Consts, typename Traits::Scale;

  // A stage has the scales of both chunks' blocks, for slots that have blocks.
  static constexpr int kBlockSlots = kSlots - kOwnSlots;
  struct Staged {
    static constexpr int kHeld = Arrays::kHeld;
    static constexpr bool kSplitsSectors = Arrays::kSplitsSectors;
    static constexpr int kStageBytes = Arrays::kScalesAt + 2 * kBlockSlots * 128;
    static constexpr int kColumnBytes = kOwnSlots * kChunk * 128;
  };

 public:
  using Map = SharedMap<Codes, Staged>;

  __device__ PanelStep(const StepParams& params, const Prepared& prepared, std::uint32_t warp)
      : Base(params, prepared, warp), stages_(Map::stage_of(tables(), warp)) {}

  __device__ void run(std::uint32_t warps) const {
    std::uint32_t panel = broadcast_unit(request_unit());
    std::uint32_t requested = request_unit();
    Tile now{};
    if (panel < params_.units) {
      now = find(panel, nothing());
      now.stage = stages_;
      fetch(now);
    }
    if constexpr (kFetches) end_of_copies();
    Own own{};
    bool more = panel < params_.units;
    while (more) {
      const Rank1View& v = entry(now).rank1;
      if (number(v, now.row) == 0) load(v, now, own);
      Tile next = now;
      next.row += 2 * rows_abreast(v.lane_bits);
      next.at += 2 * v.apart;
      if (number(v, next.row) == 0 || next.row >= v.rows) {
        panel = broadcast_unit(requested);
        more = panel < params_.units;
        if (more) {
          requested = request_unit();
          next = find(panel, now);
        }
      }
      if (more) {
        next.stage = now.stage == stages_ ? stages_ + Staged::kStageBytes : stages_;
        fetch(next);
      }
      if constexpr (kFetches) {
        end_of_copies();
        wait_copies();
      }
      if (!quick(now) || !tile(now, own)) slow_tile(now);
      now = next;
    }
    Base::finish(warps);
  }

 private:
  // Two steps of a strip. It is small enough to stay in registers while another tile is processed.
  struct Tile {
    std::uint32_t entry;  // index of its tensor's entry
    std::uint32_t row;    // the first row
    std::uint32_t at;     // the lane's first chunk; its second is at + Rank1View::apart
    std::uint32_t stage;  // the stage that it is fetched to
    std::uint32_t grads;  // how its gradients are loaded
    std::uint32_t slot;   // its entry's slot, from the start of shared memory
  };
  static constexpr bool kCachesEntries = Map::caches_entries(kArch);
  static constexpr bool kCachesColumns = Map::caches_columns(kArch);
  // The scales of a panel: the old ones of the lane's columns, and those of the row with the lane's number.
  // The columns' new scales are in shared memory or in the first-level cache, because there are no registers
  // left for them.
  struct Own {
    float old_column[kOwn][kChunk];
    float old_row[kOwn], new_row[kOwn];
    const float* new_column[kOwn];
  };

  __device__ const TensorEntry& entry(const Tile& tile) const {
    if constexpr (!kCachesEntries) return params_.tensors[tile.entry];
    return *reinterpret_cast<const TensorEntry*>(shared_memory() + tile.slot);
  }
  __device__ Stage stage(const Tile& tile) const { return {tile.stage, lane_}; }
  static __device__ Work work(const Tile& tile) { return {tile.entry, 0U, 0U, tile.stage, tile.grads, 0U}; }

  // Returns the state before a warp's first tile: no tensor, and the second slot for entries.
  __device__ Tile nothing() const {
    Tile out{};
    out.entry = ~0U;
    out.slot = first_slot() + kEntryBytes;
    return out;
  }
  __device__ std::uint32_t first_slot() const { return stages_ - tables() + Map::kEntriesAt; }
  // `before` is a tile of the same warp, whose entry is reused if it is the same.
  __device__ Tile find(std::uint32_t panel, const Tile& before) const {
    std::uint32_t number = params_.map[panel / kMapStep];
    while (params_.tensors[number + 1].rank1.first_panel <= panel) ++number;
    Tile out;
    out.entry = number;
    out.slot = before.slot;
    if constexpr (kCachesEntries)
      if (number != before.entry) out.slot = Base::load_entry(first_slot(), number, before.slot);
    const TensorEntry* t = &entry(out);
    const Rank1View& v = t->rank1;
    const std::uint32_t index = panel - v.first_panel;
    const std::uint32_t group = index / v.strips;
    out.row = group * panel_rows(v.lane_bits);
    out.at = (out.row + (lane_ >> v.lane_bits)) * static_cast<std::uint32_t>(v.columns / kChunk) +
             ((index - group * v.strips) << v.lane_bits) + (lane_ & ((1U << v.lane_bits) - 1));
    out.grads = is_f32(t->grad_dtype) == Arrays::kWideWeights ? 0U : kOtherWidth;
    if (t->aligned == 0) out.grads |= kUnaligned;
    if (out.grads == 0 && t->usual != 0) out.grads = kUsual;
    return out;
  }
  // Returns a row's number in its panel.
  static __device__ std::uint32_t number(const Rank1View& v, std::uint32_t row) {
    return row & static_cast<std::uint32_t>(panel_rows(v.lane_bits) - 1);
  }
  // Returns true for complete tiles. Tiles at the end of a tensor may lack rows.
  __device__ bool quick(const Tile& tile) const {
    const Rank1View& v = entry(tile).rank1;
    return v.quick != 0 && this->in_range_ && tile.row + 2 * rows_abreast(v.lane_bits) <= v.rows;
  }
  __device__ void slow_tile(const Tile& tile) const {
    const Rank1View& v = entry(tile).rank1;
    const std::int64_t row = tile.row + (lane_ >> v.lane_bits);
    const std::int64_t at[2] = {Base::element(tile.at), Base::element(tile.at + v.apart)};
    const bool there[2] = {row < v.rows, row + rows_abreast(v.lane_bits) < v.rows};
    Slow::panel_tile(prepared_, entry(tile), at, there);
  }

  __device__ void load(const Rank1View& v, const Tile& tile, Own& own) const {
    const std::uint32_t row = min(tile.row + lane_, static_cast<std::uint32_t>(v.rows) - 1);
    const std::uint32_t chunk =
        tile.at - (tile.row + (lane_ >> v.lane_bits)) * static_cast<std::uint32_t>(v.columns / kChunk);
#pragma unroll
    for (int m = 0; m < kOwnSlots; ++m) {
      load_eight(old_columns(v, m) + kChunk * chunk, own.old_column[m]);
      own.old_row[m] = old_rows(v, m)[row];
      own.new_row[m] = new_rows(v, m)[row];
      own.new_column[m] = new_columns(v, m) + kChunk * chunk;
      if constexpr (kCachesColumns) {
        const auto* quads = reinterpret_cast<const uint4*>(own.new_column[m]);
        shared_store(column_at(m), quads[0]);
        shared_store(column_at(m) + 512, quads[1]);
      }
    }
  }
  // Returns the address of four of the lane's columns in shared memory. The other four are 512 bytes further.
  __device__ std::uint32_t column_at(int m) const {
    return stages_ + Map::columns_at(kArch) + lane_ * 16U + static_cast<std::uint32_t>(m) * kChunk * 128U;
  }
  __device__ void load_new_columns(const Own& own, int m, float* to) const {
    if constexpr (kCachesColumns) {
      const uint4 words[2] = {shared_load<uint4>(column_at(m)), shared_load<uint4>(column_at(m) + 512)};
#pragma unroll
      for (int i = 0; i < kChunk; ++i) to[i] = reinterpret_cast<const float*>(words)[i];
    } else {
      load_eight(own.new_column[m], to);
    }
  }
  // Returns the lane that has the scales of a chunk's row.
  __device__ int row_lane(const Tile& now, int chunk) const {
    const Rank1View& v = entry(now).rank1;
    return static_cast<int>(number(v, now.row) + (lane_ >> v.lane_bits)) + chunk * rows_abreast(v.lane_bits);
  }

  // Returns log2 of the chunks of a block. It is also the number of lanes, because a lane has one chunk of a
  // block.
  template <bool kKnown>
  static __device__ std::uint32_t block_bits(const TensorEntry& t) {
    constexpr int kDefault = std::countr_zero(std::max(Traits::kDefaultLanes, 1U)) + 1;
    return kKnown ? kDefault : t.lanes_log2 + 1U;
  }
  static __device__ std::uint32_t scale_at(Stage stage, int slot, int chunk) {
    return Arrays::scale_at(stage, chunk * kBlockSlots + slot - own_index(slot));
  }
  __device__ void fetch(const Tile& tile) const {
    if constexpr (kFetches) {
      if (!quick(tile)) return;
      if ((tile.grads & kUsual) != 0) {
        fetch_arrays<true>(tile, std::make_integer_sequence<int, kSlots>{});
      } else {
        fetch_arrays<false>(tile, std::make_integer_sequence<int, kSlots>{});
      }
    }
  }
  template <bool kKnown, int... kSlot>
  __device__ void fetch_arrays(const Tile& tile, std::integer_sequence<int, kSlot...>) const {
    const TensorEntry& t = entry(tile);
    const Stage to = stage(tile);
    // Everything that is needed of the entry is loaded before the first copy, which prevents the compiler
    // from reordering.
    const auto [param, grad] = pointers_at(&t.param, &t.grad);
    const auto [first_codes, second_codes] = pointers_at(&t.codes[0], &t.codes[1]);
    const auto [third_codes, residual] = pointers_at(&t.codes[2], &t.residual);
    const auto [first_scales, second_scales] = pointers_at(&t.scales[0], &t.scales[1]);
    const void* const codes[] = {first_codes, second_codes, third_codes};
    const float* const scales[] = {first_scales, second_scales, kSlots > 2 ? t.scales[2] : nullptr};
    const std::uint32_t apart = t.rank1.apart;
    const std::uint32_t bits = block_bits<kKnown>(t);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (own_scale(k)) continue;
#pragma unroll
      for (int c = 0; c < 2; ++c)
        copy_async<4, false>(scale_at(to, k, c), scales[k] + ((tile.at + c * apart) >> bits));
    }
    Arrays::Param::fetch(to, param, tile.at, apart);
    if constexpr (Arrays::kResidualBits > 0) Arrays::Residual::fetch(to, residual, tile.at, apart);
    using Grad = typename Arrays::template Grad<Arrays::kWideWeights>;
    if (kKnown || tile.grads == 0) {
      Grad::fetch(to, grad, tile.at, apart);
    } else if (loads_by_words(tile, grad)) {
      Grad::fetch_by_words(to, grad, tile.at, apart);
    }
    (Arrays::template Codes<kSlot>::fetch(to, codes[kSlot], tile.at, apart), ...);
  }

  // Steps a quick tile. Returns false if an element of the warp is out of range; then nothing was written.
  __device__ bool tile(const Tile& now, const Own& own) const {
    return (now.grads & kUsual) != 0 ? usual_tile<true>(now, own) : usual_tile<false>(now, own);
  }
  template <bool kKnown>
  __device__ bool usual_tile(const Tile& now, const Own& own) const {
    const TensorEntry& t = entry(now);
    const std::uint32_t apart = t.rank1.apart;
    float s[kStates][2 * kChunk];
    Bounds bounds[2];
    Eights p[2];
    const Seen one = chunk<0, kKnown>(now, now.at, own, p[0], s, bounds[0]);
    asm volatile("" ::: "memory");  // one after the other, as in block_tile.cuh
    const Seen two = chunk<1, kKnown>(now, now.at + apart, own, p[1], s, bounds[1]);
    const Consts c = Base::consts_of(t);
    bool good = bounds[0].in_range(c) && bounds[1].in_range(c) && one.watch + two.watch == 0.0F;
    if constexpr (kDivides) {
      const float least = Base::least_result(t);
      if (fminf(one.low, two.low) < least)
        good = good && Base::template right_weights<kKnown>(t, c, least, p[0], s, 0) &&
               Base::template right_weights<kKnown>(t, c, least, p[1], s, kChunk);
    }
    if (__any_sync(~0U, !good)) return false;
    Base::store_weights(t, now.at, p[0]);
    Base::store_weights(t, now.at, p[1], apart);
    Scale encoded[2][kStates];
    scales<kKnown>(t, now.at, apart, bounds, encoded);
    encode(now, apart, own, s, bounds, encoded, std::make_integer_sequence<int, kSlots>{});
    return true;
  }

  template <int kIndex, bool kKnown>
  __device__ Seen chunk(const Tile& now, std::uint32_t at, const Own& own, Eights& p,
                        float (&s)[kStates][2 * kChunk], Bounds& bounds) const {
    const TensorEntry& t = entry(now);
    decode<kIndex, kKnown>(now, at, own, s, std::make_integer_sequence<int, kSlots>{});
    float weights[kChunk];
    float grads[kChunk];
    Base::template load_weights<kIndex>(work(now), t, at, p);
    p.template unpack<kKnown>(t, weights);
    load_grads<kIndex, kKnown>(now, t, at, grads);
    const float low = Base::update8(Base::consts_of(t), weights, grads, s, kIndex * kChunk, bounds);
    Seen seen = p.template pack<kKnown>(t, prepared_.round_base, at, weights);
    if constexpr (kDividesGradient) seen.low = low;
    return seen;
  }

  // Gradients at a multiple of four bytes are fetched by words. Gradients of another width, and those at odd
  // halves, are rare and not fetched ahead.
  static __device__ bool loads_by_words(const Tile& tile, const void* grad) {
    return kFetches && tile.grads == kUnaligned && (reinterpret_cast<std::uint64_t>(grad) & 3U) == 0;
  }
  template <int kIndex, bool kKnown>
  __device__ void load_grads(const Tile& now, const TensorEntry& t, std::uint32_t at, float* out) const {
    using Grad = typename Arrays::template Grad<Arrays::kWideWeights>;
    using Other = typename Arrays::template Grad<!Arrays::kWideWeights>;
    if (kKnown || (now.grads & ~kUsual) == 0 || loads_by_words(now, t.grad)) {
      unpack_grads<kKnown>(Base::template share<kIndex, Grad>(work(now), t.grad, at), t, out);
    } else if ((now.grads & kOtherWidth) == 0) {
      unpack_grads<false>(Grad::get_any(t.grad, at), t, out);
    } else {
      const bool aligned = (now.grads & kUnaligned) == 0;
      unpack_grads<false>(aligned ? Other::get(t.grad, at) : Other::get_any(t.grad, at), t, out);
    }
  }

  template <int kIndex, bool kKnown, int... kSlot>
  __device__ void decode(const Tile& now, std::uint32_t at, const Own& own, float (&s)[kStates][2 * kChunk],
                         std::integer_sequence<int, kSlot...>) const {
    const TensorEntry& t = entry(now);
    const auto get = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      using Array = typename Arrays::template Codes<kOne>;
      const auto words = Base::template share<kIndex, Array>(work(now), t.codes[kOne], at);
      float* to = s[kOne] + kIndex * kChunk;
      Codes::template decode<moment(kOne)>(tables(), reinterpret_cast<const std::uint32_t*>(&words), to);
      if constexpr (own_scale(kOne)) {
        constexpr int kMoment = own_index(kOne);
        const float row = __shfl_sync(~0U, own.old_row[kMoment], row_lane(now, kIndex));
#pragma unroll
        for (int i = 0; i < kChunk; ++i) to[i] *= smaller_scale(row, own.old_column[kMoment][i]);
      } else {
        float scale;
        if constexpr (kStaged) {
          scale = __uint_as_float(shared_load<unsigned>(scale_at(stage(now), kOne, kIndex)));
        } else {
          scale = t.scales[kOne][at >> block_bits<kKnown>(t)];
        }
#pragma unroll
        for (int i = 0; i < kChunk; ++i) to[i] *= scale;
      }
    };
    (get(std::integral_constant<int, kSlot>{}), ...);
  }

  // Computes the scales of both chunks' blocks: even lanes compute the first chunk's, odd lanes the second's.
  // All maxima are in range.
  template <bool kKnown>
  __device__ void scales(const TensorEntry& t, std::uint32_t at, std::uint32_t apart,
                         const Bounds (&bounds)[2], Scale (&out)[2][kStates]) const {
    const bool odd = (lane_ & 1U) != 0;
    const std::uint32_t bits = block_bits<kKnown>(t);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (own_scale(k)) continue;
      const std::uint32_t first = __float_as_uint(bounds[0].high[k]);
      const std::uint32_t second = __float_as_uint(bounds[1].high[k]);
      std::uint32_t mine = max(odd ? second : first, __shfl_xor_sync(~0U, odd ? first : second, 1));
      for (std::uint32_t o = 2; o < 1U << bits; o *= 2) mine = max(mine, __shfl_xor_sync(~0U, mine, o));
      const formula::BlockScale scale = small_scale(__uint_as_float(mine), largest(k));
      if ((lane_ & ((1U << bits) - 1)) < 2) t.scales[k][(odd ? at + apart : at) >> bits] = scale.scale;
      const float other = __shfl_xor_sync(~0U, scale.inverse, 1);
      out[0][k] = {odd ? other : scale.inverse, true};
      out[1][k] = {odd ? scale.inverse : other, true};
    }
  }

  template <int... kSlot>
  __device__ void encode(const Tile& now, std::uint32_t apart, const Own& own,
                         const float (&s)[kStates][2 * kChunk], const Bounds (&bounds)[2],
                         const Scale (&scale)[2][kStates], std::integer_sequence<int, kSlot...>) const {
    const TensorEntry& t = entry(now);
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      using Array = typename Arrays::template Codes<kOne>;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        typename Array::Share words;
        auto* const codes = reinterpret_cast<std::uint32_t*>(&words);
        const float* from = s[kOne] + c * kChunk;
        if constexpr (own_scale(kOne)) {
          constexpr int kMoment = own_index(kOne);
          const float row = __shfl_sync(~0U, own.new_row[kMoment], row_lane(now, c));
          float x[kChunk];
          load_new_columns(own, kMoment, x);
#pragma unroll
          for (int i = 0; i < kChunk; ++i) x[i] = over_rank1<true>(from[i], row, x[i]);
          Codes::template encode<moment(kOne)>(tables(), x, 1.0F, codes);
        } else {
          Codes::template encode<moment(kOne)>(tables(), from, scale[c][kOne].inverse, codes);
        }
        if constexpr (Traits::template kZeroCode<kOne> >= 0) {
          if (__float_as_uint(bounds[c].low_second) == 0) Traits::template put_zeros<kOne>(from, codes);
        }
        Array::put(t.codes[kOne], now.at, words, c * apart);
      }
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }

  const std::uint32_t stages_;  // the warp's two stages
};

template <class Algo, class Format, WeightKind kKind>
__global__ void __launch_bounds__(PanelStep<Algo, Format, kKind>::Map::threads(kArch), 1)
    panel_kernel(const __grid_constant__ StepParams params) {
  start_pass<Format>(params, [&](const Prepared& prepared, std::uint32_t warp, std::uint32_t warps) {
    PanelStep<Algo, Format, kKind>(params, prepared, warp).run(gridDim.x * warps);
  });
}

}  // namespace octavo::cuda
