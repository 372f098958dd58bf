// The step on a GPU: one launch over all tensors of a group, one template for every algorithm, format and
// weight store. A warp takes a tile of 512 elements: load, decode, formula, maximum, encode, store, without
// leaving its registers and without waiting for another warp.
//
// A block of 16 * G elements belongs to G neighbouring lanes; a lane holds two chunks of eight elements, the
// second half a block after the first, so that neighbouring lanes touch neighbouring bytes. Chunks that are
// whole, aligned (gradients may lie anywhere) and in range go by vectors and the lane without branches
// (lane/cuda.cuh); the rest, element by element in the scalar lane (step_slow.cuh), with the same results.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/axis_scales.cuh"
#include "cuda/measure.cuh"
#include "cuda/step_slow.cuh"
#include "cuda/step_traits.cuh"
#include "cuda/tile_io.cuh"
#include "cuda/weights.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class Step : protected StepTraits<Algo, Format> {
 protected:
  using Traits = StepTraits<Algo, Format>;
  using Slow = SlowStep<Algo, Format, kKind>;
  using Traits::is_second;
  using Traits::kCodesZero;
  using Traits::kDivides;
  using Traits::kDividesGradient;
  using Traits::kMeasures;
  using Traits::kQuick;
  using Traits::kSlots;
  using Traits::kStates;
  using Traits::lane;
  using Traits::moment;
  using Traits::numerator;
  using Traits::own_index;
  using Traits::own_scale;
  using Traits::state_key;
  using typename Traits::Bounds;
  using typename Traits::Codes;
  using typename Traits::Consts;
  using typename Traits::Plain;
  using typename Traits::QuickPlace;
  using typename Traits::Scale;
  template <int... kSlot>
  static TileArrays<kKind, Format::kBlocked, Traits::template Codec<kSlot>::kBits...> arrays(
      std::integer_sequence<int, kSlot...>);
  using Arrays = decltype(arrays(std::make_integer_sequence<int, kSlots>{}));
  static constexpr bool kFetches = kStaged && kQuick;
  using Eights = Weights<kKind, Arrays>;

 public:
  using Map = SharedMap<Codes, Arrays>;
  static constexpr bool kHasQuick = kQuick;
  // Measured: formats that compute longer gain from fewer requests.
  static constexpr std::uint32_t kTogether = Codes::kCopied ? 8 : 4;

  __device__ Step(const StepParams& params, const Prepared& prepared, std::uint32_t warp)
      : params_(params),
        prepared_(prepared),
        c_(*reinterpret_cast<const Consts*>(prepared.consts)),
        in_range_(prepared.in_range != 0),
        stages_(Map::stage_of(tables(), warp)),
        lane_(lane_id()) {
    // Operands from the constant bank cost no registers.
    const auto& host = *reinterpret_cast<const Consts*>(params.constants.consts);
    Algo::take_fixed(host, c_);
    c_.decay = host.decay;
    c_.coupled = host.coupled;
  }

  // Takes a few neighbouring units at a time until none are left, so that warps with slow units take fewer.
  // The next ones are requested early, because the answer takes as long as a memory access.
  // `kMeasure`: the first of a rule's two passes, which writes sums alone.
  template <bool kMeasure>
  __device__ void run(std::uint32_t warps) const {
    std::uint32_t unit = unit_of(answer(ask()));
    std::uint32_t asked = ask();
    Work now{};
    if (unit < params_.units) {
      now.slot = stages_ - tables() + Map::kEntriesAt + kEntryBytes;
      now.entry = ~0U;
      now = find<kMeasure>(unit, now);
      now.stage = stages_;
      fetch(now);
    }
    if constexpr (kFetches) end_of_copies();
    bool more = unit < params_.units;
    while (more) {
      const std::uint32_t this_unit = unit;
      if (++unit % kTogether == 0 || unit > params_.grouped) {
        unit = unit_of(answer(asked));
        if (unit < params_.units) asked = ask();
      }
      more = unit < params_.units;
      Work next;
      if (more) {
        next = now;
        ++next.index;
        if (unit != this_unit + 1 || next.index >= now.quick_units) next = find<kMeasure>(unit, now);
        next.stage = now.stage == stages_ ? stages_ + Arrays::kStageBytes : stages_;
        fetch(next);
      }
      if constexpr (kFetches) {
        end_of_copies();
        wait_copies();
      }
      if (quick(now) || large_unit(now)) {
        tile<kMeasure>(now);
      } else {
        slow<kMeasure>(now);
      }
      now = next;
    }
    finish(warps);
  }

 protected:
  // Opaque, so that it stays in its register.
  static __device__ std::uint32_t lane_id() {
    std::uint32_t out;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(out));
    return out;
  }

  // A unit of work, small enough to be carried along while another is done.
  struct Work {
    std::uint32_t entry;        // of its tensor
    std::uint32_t index;        // in it
    std::uint32_t quick_units;  // of it
    std::uint32_t stage;        // where it is fetched to
    std::uint32_t flags;
    std::uint32_t slot;  // of its entry, from the start of shared memory
  };
  // Weights and gradients of the types that most have, with default blocks, and none of what follows.
  static constexpr std::uint32_t kUsual = 1;
  static constexpr std::uint32_t kOtherWidth = 2;  // gradients that are not as wide as the weights
  static constexpr std::uint32_t kUnaligned = 4;   // gradients
  static constexpr std::uint32_t kEnd = 8;         // of a tensor, less than a tile
  static constexpr std::uint32_t kLarge = 16;      // a block that is larger than a tile
  __device__ Stage stage(const Work& work) const { return {work.stage, lane_}; }
  // Aligned and of a common block size: by vectors.
  static __device__ bool quick(const Work& work) { return kQuick && work.index < work.quick_units; }
  // A block of several tiles: by vectors, too, but not fetched ahead.
  static __device__ bool large_unit(const Work& work) { return kQuick && (work.flags & kLarge) != 0; }

  static constexpr bool kKeepsEntries = Map::keeps_entries(kArch);
  __device__ const TensorEntry& entry(const Work& work) const {
    if constexpr (!kKeepsEntries) return params_.tensors[work.entry];
    return *reinterpret_cast<const TensorEntry*>(shared_memory() + work.slot);
  }
  // The lane's first elements in a tile without blocks.
  static __device__ std::uint32_t first_of(const Work& work, std::uint32_t lane) {
    return work.index * (kTile / kUnit<true>)+lane;
  }
  static constexpr std::uint32_t kHalfTile = kTile / 2 / kUnit<true>;

  // The first unit of the turn that a warp got: several units at first, and one at a time towards the end, so
  // that warps end together.
  __device__ std::uint32_t unit_of(std::uint32_t turn) const {
    const std::uint32_t turns = params_.grouped / kTogether;
    return turn < turns ? turn * kTogether : params_.grouped + (turn - turns);
  }

  // Lane 0 counts for the warp. The last warp of a launch leaves the counters as it found them.
  __device__ std::uint32_t ask() const { return lane() == 0 ? atomicAdd(params_.counters, 1U) : 0U; }
  static __device__ std::uint32_t answer(std::uint32_t asked) { return __shfl_sync(~0U, asked, 0); }
  __device__ void finish(std::uint32_t warps) const {
    if (lane() != 0) return;
    __threadfence();  // the requested copies come before
    if (atomicAdd(params_.counters + 1, 1U) == warps - 1) params_.counters[0] = params_.counters[1] = 0;
  }

  // `before`: a tile of the same warp, whose entry stays where it is.
  template <bool kMeasure>
  __device__ Work find(std::uint32_t unit, const Work& before) const {
    std::uint32_t number = params_.map[unit / kMapStep];
    while (params_.tensors[number + 1].first_unit <= unit) ++number;
    Work out;
    out.entry = number;
    out.slot = before.slot;
    if constexpr (kKeepsEntries)
      if (number != before.entry) out.slot = take_entry(number, before.slot);
    const TensorEntry* t = &entry(out);
    const std::uint32_t index = unit - t->first_unit;
    std::uint32_t quick = in_range_ ? t->quick_units : 0U;
    std::uint32_t flags = is_f32(t->grad_dtype) == Arrays::kWideWeights ? 0U : kOtherWidth;
    if (t->aligned == 0) flags |= kUnaligned;
    if (!kMeasure && in_range_) {  // a lane that does what another does would count it twice
      if (t->quick_large != 0) {
        if (t->quick_end != 0 || (index + std::int64_t{1}) * t->block <= t->numel) flags |= kLarge;
      } else if (kStaged && t->quick_end != 0 && index == quick) {
        ++quick;  // not without stages: one would load what another has already changed
        flags |= kEnd;
      }
    }
    if (flags == 0 && t->usual != 0) flags = kUsual;
    out.index = index;
    out.quick_units = quick;
    out.flags = flags;
    return out;
  }

  // Copies a tensor's entry to the warp's other slot.
  __device__ std::uint32_t take_entry(std::uint32_t number, std::uint32_t slot) const {
    const std::uint32_t first = stages_ - tables() + Map::kEntriesAt;
    const std::uint32_t other = slot == first ? first + kEntryBytes : first;
    __syncwarp();  // nobody reads what it held
    const auto* from = reinterpret_cast<const uint4*>(params_.tensors + number);
    auto* to = reinterpret_cast<uint4*>(shared_memory() + other);
    for (std::uint32_t i = lane_; i < sizeof(TensorEntry) / 16; i += 32) to[i] = from[i];
    __syncwarp();
    return other;
  }

  // A lane's share of a quick tile.
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
  // At the end of a tensor, lanes that would have nothing do again what others do, and write the same bytes:
  // a chunk that is not there is another one of its lane or of its block, and a block that is not there is
  // the tile's first. Without blocks, the second half of the tile begins earlier.
  static __device__ QuickPlace place_at_end(const TensorEntry& t, std::uint32_t tile, QuickPlace p) {
    constexpr int kUnitHere = kUnit<Arrays::kQuads>;
    const auto left = static_cast<std::uint32_t>((t.numel - std::int64_t{tile} * kTile) / kUnitHere);
    if constexpr (!Format::kBlocked) {
      p.apart = left - kHalfTile;
    } else {
      const std::uint32_t start = tile * (kTile / kUnitHere);
      std::uint32_t block = p.first - start - p.lane;  // its first chunk, counted in the tile
      if (block >= left) {
        p.first -= block;
        block = 0;
      }
      if (p.first - start >= left) p.first = start + block;
      if (p.first - start + p.apart >= left) p.apart = 0;
    }
    return p;
  }

  // The first element of a place.
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
    // All of the entry that is needed, before the first copy keeps the compiler from reordering.
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
  // Unaligned gradients were copied as they lie in memory. They go to where the lanes take them.
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
  // Calls f(whether gradients are fp32).
  template <class Fn>
  static __device__ void with_grads(const Work& work, Fn&& f) {
    if ((work.flags & kOtherWidth) == 0) {
      f(std::bool_constant<Arrays::kWideWeights>{});
    } else {
      f(std::bool_constant<!Arrays::kWideWeights>{});
    }
  }
  // Where a tile's gradients begin, and how many bytes they are.
  template <bool kWide>
  static __device__ const char* tile_of(const Work& work, const TensorEntry& t) {
    return static_cast<const char*>(t.grad) + std::int64_t{work.index} * (kTile * (kWide ? 4 : 2));
  }
  template <bool kWide>
  static __device__ std::uint32_t bytes_of(const Work& work, const TensorEntry& t) {
    const std::int64_t left = t.numel - std::int64_t{work.index} * kTile;
    return static_cast<std::uint32_t>(min(left, std::int64_t{kTile})) * (kWide ? 4 : 2);
  }
  // The scale of the lane's block.
  __device__ float scale_of_block(const Work& work, int slot, std::uint32_t block) const {
    if constexpr (kStaged) return __uint_as_float(shared_load<unsigned>(Arrays::scale_at(stage(work), slot)));
    return entry(work).scales[slot][block];
  }
  // A lane's share of an array, fetched or not.
  template <int kIndex, class Array>
  __device__ typename Array::Share share(const Work& work, const void* base, std::uint32_t at) const {
    if constexpr (kStaged) return Array::template take<kIndex>(stage(work));
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
      return Grad::template take<kIndex>(stage(work));
    } else if ((work.flags & kUnaligned) != 0) {
      return Grad::get_any(t.grad, at);
    } else if constexpr (!kStaged) {
      return Grad::get(t.grad, at);
    } else {
      // The second chunk follows the first to the same place while that is worked on.
      if constexpr (kIndex == 1) wait_all_copies();
      const auto words = Grad::template take<0>(stage(work));
      if constexpr (kIndex == 0) {
        Grad::template fetch_chunk<0>(stage(work),
                                      Grad::at(t.grad, at + place_of<false>(work, t, lane_).apart));
        end_of_copies();
      }
      return words;
    }
  }

  // Raw gradients times their factor, with coupled decay: one branch around all of it, because instructions
  // that are predicated cost as much as others.
  __device__ void scale_grads(const float* p, float* g) const {
    if (!c_.coupled && c_.factor == 1.0F) return;
    const formula::Common common = c_;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) g[i] = formula::gradient(common, F32(g[i]), F32(p[i])).v;
  }

  // The constants of a tensor's elements.
  __device__ Consts consts_of(const TensorEntry& t) const {
    Consts c = c_;
    if constexpr (kMeasures) c.ratio = t.ratio;
    return c;
  }

  // The formula over eight elements whose weights and raw gradients are unpacked; states are in `s`. Returns
  // the smallest result whose numerator is not +0, where only the gradient tells.
  template <int kStride>
  __device__ float update8(const Consts& c, float* p, float* g, float (&s)[kStates][kStride], int first,
                           Bounds& bounds) const {
    return each8<false>(c, p, g, s, first, bounds);
  }
  // What the rule measures of eight elements, in place of the gradients; `s` becomes the new moments.
  template <int kStride>
  __device__ float measure8(float* p, float* g, float (&s)[kStates][kStride], int first,
                            Bounds& bounds) const {
    return each8<true>(c_, p, g, s, first, bounds);
  }
  template <bool kMeasure, int kStride>
  __device__ float each8(const Consts& c, float* p, float* g, float (&s)[kStates][kStride], int first,
                         Bounds& bounds) const {
    scale_grads(p, g);
    float low = kLargeFirst;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      F32 state[kStates];
#pragma unroll
      for (int k = 0; k < kSlots; ++k) state[k] = F32(s[k][first + i]);
      const F32 grad(g[i]);
      float result;
      if constexpr (kMeasure) {
        result = g[i] = Algo::measured(c, grad, F32(p[i]), state).v;
      } else {
        result = p[i] = Algo::update(c, grad, F32(p[i]), state).v;
      }
#pragma unroll
      for (int k = 0; k < kSlots; ++k) s[k][first + i] = state[k].v;
      if constexpr (kDividesGradient)
        if (__float_as_uint(grad.v) != 0) low = fminf(low, fabsf(result));
    }
    bounds.raise8(s, first);
    return low;
  }

  // The least result that is known to be right.
  __device__ float least_result(const TensorEntry& t) const {
    if constexpr (kMeasures) return prepared_.least_result * fmaxf(fabsf(t.ratio), 1.0F);
    return prepared_.least_result;
  }
  // Whether eight results are right although one of them is small (lane/exact.h), from the new moments.
  template <int kStride>
  __device__ bool right8(const Consts& c, float least, const float* result,
                         const float (&s)[kStates][kStride], int first) const {
    bool right = !kDividesGradient;
    if constexpr (kDivides && !kDividesGradient) {
      const bool usual_eps = c.eps >= kSmallEps;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        F32 state[kStates];
        bool small = false;  // a root could be
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          state[k] = F32(s[k][first + i]);
          if (is_second(k)) small |= state[k].v < kSmallSecond;
        }
        const float divided = numerator(c, F32(0.0F), state);
        const bool zero = __float_as_uint(divided) == 0;
        // Without branches: whatever is not needed is cheaper than they are.
        right &= usual_eps ? zero | (fabsf(result[i]) >= least)
                           : !small & (zero | (fabsf(divided) >= kSmallFirst));
      }
    }
    return right;
  }

  // Blocks that are larger than a tile are worked on twice: first all tiles are measured, then all are
  // written. All this stays in memory, because registers are for the tiles.
  struct Large {
    std::uint32_t unit, flags, first, tiles, tile;
    bool measures;
    float high[kStates];
  };
  static __device__ __noinline__ void begin(Large& large, const TensorEntry& t, std::uint32_t unit,
                                            std::uint32_t flags) {
    large.unit = unit;
    large.flags = flags;
    large.first = unit * (static_cast<std::uint32_t>(t.block) / kTile);
    const std::int64_t left = t.numel - std::int64_t{large.first} * kTile;
    large.tiles = static_cast<std::uint32_t>((min(left, std::int64_t{t.block}) + kTile - 1) / kTile);
    large.tile = 0;
    large.measures = true;
    for (float& high : large.high) high = 0.0F;
  }
  // To the next tile, or from the last to the first again. Returns whether there is more to do.
  static __device__ __noinline__ bool advance(Large& large) {
    if (++large.tile < large.tiles) return true;
    large.tile = 0;
    large.measures = !large.measures;
    return !large.measures;
  }
  // The largest moment of the block, as far as it is known.
  static __device__ __noinline__ float raise(Large& large, int slot, float high) {
    return large.high[slot] = max_nan(large.high[slot], high);
  }
  __device__ bool block_tiles(Work& now) const {
    Large large;
    if ((now.flags & kLarge) != 0) begin(large, entry(now), now.index, now.flags);
    bool good;
    bool more;
    do {
      if ((now.flags & kLarge) != 0) {
        now.index = large.first + large.tile;
        if (entry(now).numel < (now.index + std::int64_t{1}) * kTile) now.flags |= kEnd;
        if constexpr (kFetches) {
          fetch_other(entry(now), now, lane_);
          end_of_copies();
          wait_all_copies();
          if ((now.flags & kUnaligned) != 0) sort_grads(entry(now), now, lane_);
        }
      }
      good = block_tile<false>(now, large);
      more = (now.flags & kLarge) != 0 && good;
      if (more) more = advance(large);
      if ((now.flags & kLarge) != 0) now.flags = large.flags;
    } while (more);
    if ((now.flags & kLarge) != 0) now.index = large.unit;
    return good;
  }

  template <bool kMeasure>
  __device__ void slow(const Work& now) const {
    const TensorEntry& t = entry(now);
    const std::int64_t at = static_cast<std::int64_t>(now.index) * (t.block > kTile ? t.block : kTile);
    if constexpr (kMeasure) {
      Slow::measure_unit(params_, prepared_, t, at);
    } else {
      Slow::run(prepared_, t, at);
    }
  }
  // A quick tile, or a slow one where it turns out to be.
  template <bool kMeasure>
  __device__ void tile(Work& now) const {
    if constexpr (kQuick) {
      if ((now.flags & kUsual) != 0) {
        if (!tile<kMeasure, true>(now)) slow<kMeasure>(now);
      } else {
        if (kStaged && (now.flags & (kUnaligned | kLarge)) == kUnaligned) sort_grads(entry(now), now, lane_);
        if (!tile<kMeasure, false>(now)) slow<kMeasure>(now);
      }
    }
  }
  // Returns false if an element of the warp is out of range; nothing was written then.
  template <bool kMeasure, bool kKnown>
  __device__ bool tile(Work& now) const {
    if constexpr (kMeasure) {
      return measure_tile<kKnown>(now);
    } else if constexpr (!Format::kBlocked) {
      return plain_tile<kKnown>(now);
    } else if constexpr (kKnown) {
      Large none;
      return block_tile<true>(now, none);
    } else {
      return block_tiles(now);
    }
  }

  template <bool kKnown>
  __device__ bool measure_tile(const Work& now) const {
    const TensorEntry& t = entry(now);
    constexpr int kParts = Format::kBlocked ? 2 : 4;
    double weights[kParts];
    double updates[kParts];
    Bounds bounds;
    int lanes = 32;
    bool right = true;
    if constexpr (Format::kBlocked) {
      const QuickPlace where = place_of<kKnown>(now, t, lane_);
      lanes = static_cast<int>(where.lanes);
      float scale[kStates];
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
        if (!own_scale(k)) scale[k] = scale_of_block(now, k, where.block);
      right = measure_chunk<0, kKnown>(now, where.first, scale, weights, updates, bounds);
      asm volatile("" ::: "memory");  // one after the other, as in block_tile
      right &= measure_chunk<1, kKnown>(now, where.first + where.apart, scale, weights, updates, bounds);
    } else {
      const float scale[kStates] = {};
      const std::uint32_t first = first_of(now, lane_);
      right = measure_chunk<0, kKnown>(now, first, scale, weights, updates, bounds);
      right &= measure_chunk<1, kKnown>(now, first + kHalfTile, scale, weights, updates, bounds);
    }
    if (__any_sync(~0U, !right || !bounds.in_range(c_))) return false;
    write_sums(weights, updates, lanes, params_.sums + t.first_tile + now.index);
    return true;
  }

  template <int kIndex, bool kKnown, int kParts>
  __device__ bool measure_chunk(const Work& now, std::uint32_t at, const float (&scale)[kStates],
                                double (&weights)[kParts], double (&updates)[kParts], Bounds& bounds) const {
    const TensorEntry& t = entry(now);
    float s[kStates][2 * kChunk];
    if constexpr (Format::kBlocked) {
      decode_slots<kIndex>(now, at, scale, s, std::make_integer_sequence<int, kSlots>{});
    } else {
      load_states<kIndex, kIndex * kChunk>(now, t, at, s, std::make_integer_sequence<int, kSlots>{});
    }
    float p[kChunk];
    float g[kChunk];
    Eights packed;
    load_weights<kIndex>(now, t, at, packed);
    packed.template unpack<kKnown>(t, p);
    load_grads<kIndex, kKnown>(now, t, at, g);
    float low = measure8(p, g, s, kIndex * kChunk, bounds);
    if constexpr (!kDividesGradient && kDivides) low = low8(g);
    const bool right =
        low >= prepared_.least_result || right8(c_, prepared_.least_result, g, s, kIndex * kChunk);
    if constexpr (Format::kBlocked) {
      weights[kIndex] = squares8(p);
      updates[kIndex] = squares8(g);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[2 * kIndex + half] = squares4(p + 4 * half);
        updates[2 * kIndex + half] = squares4(g + 4 * half);
      }
    }
    return right;
  }

  template <bool kKnown>
  __device__ bool block_tile(const Work& now, [[maybe_unused]] Large& large) const {
    const TensorEntry& t = entry(now);
    const QuickPlace where = place_of<kKnown>(now, t, lane_);
    const std::uint32_t first = where.first;
    float scale[kStates];
#pragma unroll
    for (int k = 0; k < kSlots; ++k)
      if (!own_scale(k)) scale[k] = scale_of_block(now, k, where.block);
    float s[kStates][2 * kChunk];
    Bounds bounds;
    Eights p[2];
    const Seen one = chunk<0, kKnown>(now, first, scale, p[0], s, bounds);
    // One chunk after the other: both at once would not fit into the registers.
    asm volatile("" ::: "memory");
    const Seen two = chunk<1, kKnown>(now, first + where.apart, scale, p[1], s, bounds);
    const Consts c = consts_of(t);
    bool good = bounds.in_range(c) && one.watch + two.watch == 0.0F;
    if constexpr (kDivides) {
      const float least = least_result(t);
      if (fminf(one.low, two.low) < least)
        good = good && right_weights<kKnown>(t, c, least, p[0], s, 0) &&
               right_weights<kKnown>(t, c, least, p[1], s, kChunk);
    }
    if (__any_sync(~0U, !good)) return false;
    bool last = true;
    if constexpr (!kKnown && !Format::kAxes) {
      if ((now.flags & kLarge) != 0) {
#pragma unroll
        for (int k = 0; k < kSlots; ++k) bounds.high[k] = raise(large, k, bounds.high[k]);
        if (large.measures) return true;
        last = large.tile + 1 == large.tiles;  // those before are decoded by the old scale
      }
    }
    store_weights(t, first, p[0]);
    store_weights(t, first, p[1], where.apart);
    Scale encoded[kStates];
    Traits::template scales<true>(t, where, last, bounds, nullptr, encoded);
    const bool zeros = kCodesZero && __float_as_uint(bounds.low_second) == 0;
    encode_slots(t, where, s, encoded, zeros, std::make_integer_sequence<int, kSlots>{});
    return true;
  }

  // right8 of packed weights.
  template <bool kKnown, int kStride>
  __device__ bool right_weights(const TensorEntry& t, const Consts& c, float least, const Eights& packed,
                                const float (&s)[kStates][kStride], int first) const {
    float weights[kChunk];
    packed.template unpack<kKnown>(t, weights);
    return right8(c, least, weights, s, first);
  }

  template <int kIndex, bool kKnown>
  __device__ Seen chunk(const Work& now, std::uint32_t at, const float (&scale)[kStates], Eights& p,
                        float (&s)[kStates][2 * kChunk], Bounds& bounds) const {
    const TensorEntry& t = entry(now);
    decode_slots<kIndex>(now, at, scale, s, std::make_integer_sequence<int, kSlots>{});
    float weights[kChunk];
    float grads[kChunk];
    load_weights<kIndex>(now, t, at, p);
    p.template unpack<kKnown>(t, weights);
    load_grads<kIndex, kKnown>(now, t, at, grads);
    const float low = update8(consts_of(t), weights, grads, s, kIndex * kChunk, bounds);
    Seen seen = p.template pack<kKnown>(t, prepared_.round_base, at, weights);
    if constexpr (kDividesGradient) seen.low = low;
    return seen;
  }

  template <int kIndex, int... kSlot>
  __device__ void decode_slots(const Work& now, std::uint32_t at, const float (&scale)[kStates],
                               float (&s)[kStates][2 * kChunk], std::integer_sequence<int, kSlot...>) const {
    const auto get = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      const auto words =
          share<kIndex, typename Arrays::template Codes<kOne>>(now, entry(now).codes[kOne], at);
      float* to = s[kOne] + kIndex * kChunk;
      Codes::template decode<moment(kOne)>(tables(), reinterpret_cast<const std::uint32_t*>(&words), to);
      if constexpr (own_scale(kOne)) {
        AxisChunk(entry(now), at).decode(own_index(kOne), to);
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) to[i] *= scale[kOne];
      }
    };
    (get(std::integral_constant<int, kSlot>{}), ...);
  }

  // Both chunks of every moment. `zeros`: a second moment may be zero.
  template <int... kSlot>
  static __device__ void encode_slots(const TensorEntry& t, const QuickPlace& where,
                                      const float (&s)[kStates][2 * kChunk], const Scale (&scale)[kStates],
                                      bool zeros, std::integer_sequence<int, kSlot...>) {
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      using Array = typename Arrays::template Codes<kOne>;
      typename Array::Share words[2];
      std::uint32_t* const codes[] = {reinterpret_cast<std::uint32_t*>(&words[0]),
                                      reinterpret_cast<std::uint32_t*>(&words[1])};
#pragma unroll
      for (int c = 0; c < 2; ++c)
        encode_chunk<kOne>(t, where.first + c * where.apart, s[kOne] + c * kChunk, scale[kOne], codes[c]);
      if constexpr (Traits::template kZeroCode<kOne> >= 0) {
        if (zeros) {
#pragma unroll
          for (int c = 0; c < 2; ++c) Traits::template put_zeros<kOne>(s[kOne] + c * kChunk, codes[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) Array::put(t.codes[kOne], where.first, words[c], c * where.apart);
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }
  template <int kSlot>
  static __device__ void encode_chunk(const TensorEntry& t, std::uint32_t at, const float* s,
                                      const Scale& scale, std::uint32_t* codes) {
    if constexpr (own_scale(kSlot)) {
      float x[kChunk];
      AxisChunk(t, at).over(own_index(kSlot), s, x);
      Codes::template encode<moment(kSlot)>(tables(), x, 1.0F, codes);
    } else {
      Codes::template encode<moment(kSlot)>(tables(), s, scale.inverse, codes);
    }
  }

  template <bool kKnown>
  __device__ bool plain_tile(const Work& now) const {
    const QuickPlace where = place_of<kKnown>(now, entry(now), lane_);
    plain_chunk<0, kKnown>(now, where.first);
    plain_chunk<1, kKnown>(now, where.first + where.apart);
    return true;
  }

  // Half a tile. If an element is out of range, all are computed again one by one before anything is written.
  template <int kIndex, bool kKnown>
  __device__ void plain_chunk(const Work& now, std::uint32_t at) const {
    const TensorEntry& t = entry(now);
    float s[kStates][kChunk];
    Bounds bounds;
    load_states<kIndex, 0>(now, t, at, s, std::make_integer_sequence<int, kSlots>{});
    Eights p;
    float weights[kChunk];
    float grads[kChunk];
    load_weights<kIndex>(now, t, at, p);
    p.template unpack<kKnown>(t, weights);
    load_grads<kIndex, kKnown>(now, t, at, grads);
    const Consts c = consts_of(t);
    const float low = update8(c, weights, grads, s, 0, bounds);
    const Seen seen = p.template pack<kKnown>(t, prepared_.round_base, at, weights);
    bool good = bounds.in_range(c) && seen.watch == 0.0F;
    if constexpr (kDivides) {
      const float least = least_result(t);
      if ((kDividesGradient ? low : seen.low) < least)
        good = good && right_weights<kKnown>(t, c, least, p, s, 0);
    }
    if (__any_sync(~0U, !good)) {
      std::int64_t e = element(at);
#pragma unroll 1
      for (int i = 0; i < 2; ++i, e += kQuadApart) {
        // At the end of a tensor the second half tile begins in the first, which is done.
        if (kIndex == 0 || e % kTile >= kTile / 2) Slow::slow_plain_chunk(prepared_, t, e, kUnit<true>);
      }
      return;
    }
    store_weights(t, at, p);
    store_states(t, at, s, std::make_integer_sequence<int, kSlots>{});
  }

  // To each slot's elements from kTo on.
  template <int kIndex, int kTo, int kStride, int... kSlot>
  __device__ void load_states(const Work& now, const TensorEntry& t, std::uint32_t at,
                              float (&s)[kStates][kStride], std::integer_sequence<int, kSlot...>) const {
    const auto get = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      const auto words = share<kIndex, typename Arrays::template Codes<kOne>>(now, t.codes[kOne], at);
      if constexpr (Traits::template Codec<kOne, Plain>::kBits == 32) {
        as_floats(words, s[kOne] + kTo);
      } else {
        unpack_bf16x8(words_of(words), s[kOne] + kTo);
      }
    };
    (get(std::integral_constant<int, kSlot>{}), ...);
  }
  template <int... kSlot>
  __device__ void store_states(const TensorEntry& t, std::uint32_t at, const float (&s)[kStates][kChunk],
                               std::integer_sequence<int, kSlot...>) const {
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      using Array = typename Arrays::template Codes<kOne>;
      if constexpr (Traits::template Codec<kOne, Plain>::kBits == 32) {
        Array::put(t.codes[kOne], at, as_eight<true>(s[kOne]));
      } else {
        const formula::RoundKey key = state_key(prepared_, t, kOne);
        const std::uint64_t index = index_of<true>(t, at);
        std::uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int e = 2 * i < 4 ? 2 * i : kQuadApart + 2 * i - 4;
          w[i] = Traits::template narrow_state<kOne>(key, index, e, s[kOne][2 * i]) |
                 Traits::template narrow_state<kOne>(key, index, e + 1, s[kOne][2 * i + 1]) << 16;
        }
        Array::put(t.codes[kOne], at, eight_of<true>(make_uint4(w[0], w[1], w[2], w[3])));
      }
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }

  const StepParams& params_;
  const Prepared& prepared_;
  Consts c_;
  const bool in_range_;
  const std::uint32_t stages_;  // the warp's two
  const std::uint32_t lane_;
};

template <bool kMeasure, class Algo, class Format, WeightKind kKind>
__device__ inline void run_step(const StepParams& params) {
  const Prepared& prepared = params.prepared != nullptr ? *params.prepared : params.constants;
  if (prepared.skip != 0) return;
  FormatTables<Format>::fill_tables(tables());
  __syncthreads();
  // From a shuffle the compiler knows that the warp's lanes agree.
  const std::uint32_t warp = __shfl_sync(~0U, threadIdx.x / 32, 0);
  Step<Algo, Format, kKind>(params, prepared, warp).template run<kMeasure>(gridDim.x * (blockDim.x / 32));
}

template <class Algo, class Format, WeightKind kKind>
__global__ void __launch_bounds__(Step<Algo, Format, kKind>::Map::threads(kArch), 1)
    step_kernel(const __grid_constant__ StepParams params) {
  run_step<false, Algo, Format, kKind>(params);
}

// The first pass of a rule that measures.
template <class Algo, class Format, WeightKind kKind>
__global__ void __launch_bounds__(Step<Algo, Format, kKind>::Map::threads(kArch), 1)
    measure_kernel(const __grid_constant__ StepParams params) {
  run_step<true, Algo, Format, kKind>(params);
}

}  // namespace octavo::cuda
