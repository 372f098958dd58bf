// The step on a GPU: one launch over all tensors of a group, one template for every algorithm, format and
// weight store. A warp takes a tile of 512 elements: load, decode, formula, maximum, encode, store, without
// leaving its registers and without waiting for another warp.
//
// A block of 16 * G elements belongs to G neighbouring lanes; a lane holds two chunks of eight elements, the
// second half a block after the first, so that neighbouring lanes touch neighbouring bytes. Chunks that are
// whole, aligned and in range go by vectors and the lane without branches (lane/cuda.cuh); the rest, element
// by element in the scalar lane, with the same results.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/axis_scales.cuh"
#include "cuda/element_io.cuh"
#include "cuda/packed.cuh"
#include "cuda/table.h"
#include "cuda/tile_io.cuh"
#include "cuda/weights.cuh"
#include "formula/blockwise.h"
#include "lane/cuda.cuh"

namespace octavo::cuda {

// Shared memory, which the codec's tables begin.
__device__ inline std::uint32_t tables() {
  extern __shared__ __align__(1024) char shared[];
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ inline float max_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
#else
  return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));  // of magnitudes
#endif
}

// The scale of a block: the fast lane's division where the maximum allows it.
__device__ inline formula::BlockScale scale_of(std::uint32_t max_bits, float largest) {
  const float max = __uint_as_float(max_bits);
  if (max >= kSmallFirst && max <= kLargeFirst) {
    const float scale = largest == 1.0F ? max : (F32(max) / F32(largest)).v;
    return {scale, (F32(1.0F) / F32(scale)).v, true};
  }
  return formula::block_scale(max_bits, largest);
}

template <class Algo, class Codec, WeightKind kKind>
class Step {
  using Consts = typename Algo::Consts;
  using Codes = Packed<Codec>;
  using State = std::conditional_t<Codec::kBlocked, codecs::Fp32, Codec>;  // of tensors without blocks
  static constexpr int kSlots = Algo::kSlots;
  using Arrays = TileArrays<kKind, Codec, kSlots>;
  using Eights = Weights<kKind, Arrays>;
  static constexpr int kStates = kSlots > 0 ? kSlots : 1;
  // A device cannot index a host's array: which slots are second moments, as bits.
  static constexpr int second_slots() {
    int bits = 0;
    for (int k = 0; k < kSlots; ++k) bits |= Algo::kMoments[k] == Moment::second ? 1 << k : 0;
    return bits;
  }
  static constexpr int kSecondSlots = second_slots();
  static __device__ constexpr bool is_second(int slot) { return ((kSecondSlots >> slot) & 1) != 0; }
  static __device__ constexpr Moment moment(int slot) {
    return is_second(slot) ? Moment::second : Moment::first;
  }
  static constexpr bool kDivides = kSlots >= 2;
  static __device__ constexpr bool own_scale(int slot) { return Codec::kRank1 && is_second(slot); }
  // Formats whose second moments have a code for zero, which positive ones must not get.
  static constexpr bool kZeroCode = Codec::kBlocked && Codec::kBits == 8;

 public:
  using Map = SharedMap<Codes, Arrays, kSlots>;

  __device__ Step(const StepParams& params, const Prepared& prepared, std::uint32_t warp)
      : params_(params),
        prepared_(prepared),
        c_(*reinterpret_cast<const Consts*>(prepared.consts)),
        in_range_(prepared.in_range != 0),
        stages_(Map::stage_of(tables(), warp)) {
    // Operands from the constant bank cost no registers.
    const auto& host = *reinterpret_cast<const Consts*>(params.constants.consts);
    Algo::take_fixed(host, c_);
    c_.decay = host.decay;
    c_.coupled = host.coupled;
  }

  // Takes kTogether neighbouring units at a time until none are left: warps that meet slow ones take fewer.
  // The next ones are asked for early, since the answer takes as long as memory does.
  __device__ void run(std::uint32_t warps) const {
    std::uint32_t unit = kTogether * answer(ask());
    std::uint32_t asked = ask();
    Work now{};
    if (unit < params_.units) {
      now = find(unit);
      now.stage = stages_;
      fetch(now);
    }
    if constexpr (kStaged) end_of_copies();
    while (unit < params_.units) {
      const std::uint32_t this_unit = unit;
      if (++unit % kTogether == 0) {
        unit = kTogether * answer(asked);
        if (unit < params_.units) asked = ask();
      }
      Work next{};
      if (unit < params_.units) {
        next = now;
        ++next.index;
        if (unit != this_unit + 1 || next.index >= now.quick_units) next = find(unit);
        next.stage = now.stage == stages_ ? stages_ + Arrays::kStageBytes : stages_;
        fetch(next);
      }
      if constexpr (kStaged) {
        end_of_copies();
        wait_copies();
      }
      if (!quick(now) || !tile(now)) {
        const TensorEntry& t = entry(now);
        slow(params_, prepared_, t,
             static_cast<std::int64_t>(now.index) * (t.block > kTile ? t.block : kTile));
      }
      now = next;
    }
    finish(warps);
  }

 private:
  // Measured: formats that compute longer gain from fewer questions.
  static constexpr std::uint32_t kTogether = Codes::kCopied ? 8 : 4;

  // A unit of work, small enough to be carried along while another is done.
  struct Work {
    std::uint32_t entry;        // of its tensor
    std::uint32_t index;        // in it
    std::uint32_t quick_units;  // of it
    std::uint32_t stage;        // where it is fetched to
  };
  // Whole tiles, aligned and of a common block size: by vectors.
  static __device__ bool quick(const Work& work) { return work.index < work.quick_units; }

  static __device__ int lane() { return static_cast<int>(threadIdx.x & 31U); }
  __device__ const TensorEntry& entry(const Work& work) const { return params_.tensors[work.entry]; }
  static __device__ std::int64_t at(const Work& work) {
    return static_cast<std::int64_t>(work.index) * kTile;
  }

  // Lane 0 counts for the warp. The last warp of a launch leaves the counters as it found them.
  __device__ std::uint32_t ask() const { return lane() == 0 ? atomicAdd(params_.counters, 1U) : 0U; }
  static __device__ std::uint32_t answer(std::uint32_t asked) { return __shfl_sync(~0U, asked, 0); }
  __device__ void finish(std::uint32_t warps) const {
    if (lane() != 0) return;
    __threadfence();  // what was asked for comes before
    if (atomicAdd(params_.counters + 1, 1U) == warps - 1) params_.counters[0] = params_.counters[1] = 0;
  }

  __device__ Work find(std::uint32_t unit) const {
    std::uint32_t entry = params_.map[unit / kMapStep];
    const TensorEntry* t = params_.tensors + entry;
    while (t[1].first_unit <= unit) {
      ++t;
      ++entry;
    }
    return {entry, unit - t->first_unit, in_range_ ? t->quick_units : 0U, 0U};
  }

  // Asks for what a quick unit needs.
  __device__ void fetch(const Work& work) const {
    if constexpr (kStaged) {
      if (quick(work)) fetch_arrays(work, std::make_integer_sequence<int, kSlots>{});
    }
  }
  template <int... kSlot>
  __device__ void fetch_arrays(const Work& work, std::integer_sequence<int, kSlot...>) const {
    const TensorEntry& t = entry(work);
    // All of the entry that is needed, before the first copy keeps the compiler from reordering.
    const void* const param = t.param;
    const void* const residual = Arrays::kResidualBits > 0 ? t.residual : nullptr;
    const void* const grad = t.grad;
    const void* const codes[kStates] = {t.codes[kSlot]...};
    const bool with_grad = is_f32(t.grad_dtype) == Arrays::kWideWeights;
    std::int64_t first = at(work) + lane() * 4;
    std::uint32_t apart = kTile / 2;
    if constexpr (Codec::kBlocked) {
      const float* const scales[kStates] = {t.scales[kSlot]...};
      const Place where = place(t, at(work));
      first = at(work) + where.first;
      apart = where.apart;
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
        if (!own_scale(k)) copy_async<4, false>(Arrays::scale_at(work.stage, k), scales[k] + where.block);
    }
    Arrays::Param::fetch(work.stage, param, first, apart);
    if constexpr (Arrays::kResidualBits > 0) Arrays::Residual::fetch(work.stage, residual, first, apart);
    if (with_grad) Arrays::template Grad<Arrays::kWideWeights>::fetch(work.stage, grad, first, apart);
    (Arrays::template Codes<kSlot>::fetch(work.stage, codes[kSlot], first, apart), ...);
  }
  // The scale of the lane's block.
  __device__ float scale_of_block(const Work& work, int slot, std::int64_t block) const {
    if constexpr (kStaged) return __uint_as_float(shared_load<unsigned>(Arrays::scale_at(work.stage, slot)));
    return entry(work).scales[slot][block];
  }
  // A lane's share of an array, fetched or not.
  template <int kIndex, class Array>
  static __device__ typename Array::Share share(const Work& work, const void* base, std::int64_t at) {
    if constexpr (kStaged) return Array::template take<kIndex>(work.stage);
    return Array::get(base, at);
  }
  template <int kIndex>
  static __device__ void load_weights(const Work& work, const TensorEntry& t, std::int64_t at, Eights& p) {
    p.param = share<kIndex, typename Arrays::Param>(work, t.param, at);
    if constexpr (Arrays::kResidualBits > 0)
      p.residual = share<kIndex, typename Arrays::Residual>(work, t.residual, at);
  }
  static __device__ void store_weights(const TensorEntry& t, std::int64_t at, const Eights& p) {
    Arrays::Param::put(t.param, at, p.param);
    if constexpr (Arrays::kResidualBits > 0) Arrays::Residual::put(t.residual, at, p.residual);
  }
  template <int kIndex, bool kWide>
  static __device__ void load_grads(const Work& work, const TensorEntry& t, std::int64_t at, float* out) {
    using Grad = typename Arrays::template Grad<kWide>;
    if constexpr (Arrays::fetched(kWide)) {
      unpack_grads(Grad::template take<kIndex>(work.stage), t, out);
    } else {
      unpack_grads(Grad::get(t.grad, at), t, out);
    }
  }

  // Whatever is not quick.
  static __device__ void slow(const StepParams& params, const Prepared& prepared, const TensorEntry& t,
                              std::int64_t at) {
    if constexpr (Codec::kBlocked) {
      if (t.plain == 0) {
        slow_unit(params, prepared, t, at);
        return;
      }
    }
    slow_plain(prepared, t, at);
  }

  // Moments of one chunk after the step, and their bounds.
  struct Bounds {
    float high[kStates] = {};
    float low_first = kLargeFirst;
    float low_second = kLargeSecond;

    __device__ void add(const float (&s)[kStates]) {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        high[k] = max_nan(high[k], fabsf(s[k]));
        if constexpr (kDivides) {
          if (is_second(k)) {
            low_second = fminf(low_second, s[k]);
          } else {
            low_first = fminf(low_first, fabsf(s[k]));
          }
        }
      }
    }
    [[nodiscard]] __device__ bool in_range() const {
      if constexpr (!kDivides) return true;
      bool good = low_first >= kSmallFirst && low_second >= kSmallSecond && high[0] <= kLargeFirst;
#pragma unroll
      for (int k = 1; k < kSlots; ++k) good = good && high[k] <= kLargeSecond;
      return good;
    }
  };

  // The formula over eight elements whose weights and raw gradients are unpacked; states are in `s`.
  template <int kStride>
  __device__ void update8(float* p, float* g, float (*s)[kStride], int first, Bounds& bounds) const {
    formula::Common common = c_;
    if (c_.coupled) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) g[i] = formula::gradient(common, F32(g[i]), F32(p[i])).v;
    } else if (c_.factor != 1.0F) {
      common.coupled = false;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) g[i] = formula::gradient(common, F32(g[i]), F32(p[i])).v;
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      F32 state[kStates];
      float kept[kStates];
#pragma unroll
      for (int k = 0; k < kSlots; ++k) state[k] = F32(s[k][first + i]);
      p[i] = Algo::update(c_, F32(g[i]), F32(p[i]), state).v;
#pragma unroll
      for (int k = 0; k < kSlots; ++k) s[k][first + i] = kept[k] = state[k].v;
      bounds.add(kept);
    }
  }

  // One element at a time in the scalar lane: whatever its alignment, range and number. Moments go to `out`,
  // zero beyond `valid`.
  template <class S>
  static __device__ __noinline__ void careful(const TensorEntry& t, const Prepared& prepared, std::int64_t at,
                                              int valid, bool write, float* out) {
    const Consts c = *reinterpret_cast<const Consts*>(prepared.consts);
    for (int i = 0; i < kChunk; ++i) {
      scalar::F32 s[kStates];
      if (i < valid) {
        const std::int64_t e = at + i;
#pragma unroll
        for (int k = 0; k < kSlots; ++k) s[k] = load_state<S>(t, k, e);
        const scalar::F32 before(load_weight<kKind>(t, e));
        const scalar::F32 raw(load_one(t.grad, t.grad_dtype, e));
        const scalar::F32 p = Algo::update(c, formula::gradient(c, raw, before), before, s);
        if (write) store_weight<kKind>(t, prepared.round_base, e, p.v);
      }
#pragma unroll
      for (int k = 0; k < kSlots; ++k) out[k * kChunk + i] = s[k].v;
    }
  }

  template <class S>
  static __device__ scalar::F32 load_state(const TensorEntry& t, int slot, std::int64_t e) {
    if constexpr (!S::kBlocked) {
      if constexpr (S::kBits == 32) return static_cast<const float*>(t.codes[slot])[e];
      return formula::bf16_to_float(scalar::I32(static_cast<const std::uint16_t*>(t.codes[slot])[e]));
    } else {
      const auto* bytes = static_cast<const std::uint8_t*>(t.codes[slot]);
      const bool second = is_second(slot);
      std::uint32_t code;
      if constexpr (S::kBits == 4) {
        code = (bytes[e / 2] >> (e % 2 == 0 ? 4 : 0)) & 15U;
      } else {
        code = bytes[e];
      }
      const float value = second ? kValues<typename Codes::Codec, Moment::second>.value[code]
                                 : kValues<typename Codes::Codec, Moment::first>.value[code];
      const float scale =
          Codec::kRank1 && second ? AxisWalk(t, e).scale(t.scales[slot]) : t.scales[slot][e / t.block];
      return scalar::F32(value) * scalar::F32(scale);
    }
  }

  static __device__ int valid_at(const TensorEntry& t, std::int64_t at) {
    const std::int64_t left = t.numel - at;
    return left >= kChunk ? kChunk : left > 0 ? static_cast<int>(left) : 0;
  }

  // ---- formats with blocks ----

  struct Place {
    std::uint32_t first;  // the lane's first chunk in the tile
    std::uint32_t apart;  // its second is this much further
    std::uint32_t lanes;  // of a block
    std::uint32_t lane;   // in the block
    std::int64_t block;   // index
  };

  struct Scale {
    float inverse;
    bool finite;
  };

  static __device__ Place place(const TensorEntry& t, std::int64_t at) {
    const auto block = static_cast<std::uint32_t>(t.block);
    const std::uint32_t size = block > kTile ? kTile : block;
    const std::uint32_t mine = threadIdx.x & 31U;
    Place p;
    p.lanes = size / (2 * kChunk);
    p.lane = mine & (p.lanes - 1);
    const std::uint32_t start = (mine & ~(p.lanes - 1)) * (2 * kChunk);
    p.block = (at + start) >> (31 - __clz(t.block));
    p.first = start + p.lane * kChunk;
    p.apart = size / 2;
    return p;
  }

  // A quick tile. False if an element of the warp's is not in range: then nothing was written.
  __device__ bool tile(const Work& now) const {
    if constexpr (Codec::kBlocked) {
      return is_f32(entry(now).grad_dtype) ? block_tile<true>(now) : block_tile<false>(now);
    } else {
      return is_f32(entry(now).grad_dtype) ? plain_tile<true>(now) : plain_tile<false>(now);
    }
  }

  template <bool kWide>
  __device__ bool block_tile(const Work& now) const {
    const TensorEntry& t = entry(now);
    const Place where = place(t, at(now));
    const std::int64_t first = at(now) + where.first;
    float scale[kStates];
#pragma unroll
    for (int k = 0; k < kSlots; ++k)
      if (!own_scale(k)) scale[k] = scale_of_block(now, k, where.block);
    float s[kStates][2 * kChunk];
    Bounds bounds;
    Eights p[2];
    float watch = chunk<0, kWide>(now, first, scale, p[0], s, bounds);
    asm volatile("" ::
                     : "memory");  // one chunk after the other: side by side they would not fit the registers
    watch += chunk<1, kWide>(now, first + where.apart, scale, p[1], s, bounds);
    if constexpr (Codec::kRank1) {
      if (params_.measure != 0) {  // the moments are exact whatever their range
        raise_rows(t, first, where.apart, s);
        return true;
      }
    }
    if (__any_sync(~0U, !bounds.in_range() || watch != 0.0F)) return false;
    store_weights(t, first, p[0]);
    store_weights(t, first + where.apart, p[1]);
    Scale encoded[kStates];
    scales(t, where, true, bounds, nullptr, encoded);
    encode_slots<0>(t, first, s, encoded, std::make_integer_sequence<int, kSlots>{});
    encode_slots<1>(t, first + where.apart, s, encoded, std::make_integer_sequence<int, kSlots>{});
    return true;
  }

  static __device__ void raise_rows(const TensorEntry& t, std::int64_t first, std::uint32_t apart,
                                    const float (&s)[kStates][2 * kChunk]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const AxisRow row(t, first + c * apart);
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
        if (own_scale(k)) row.raise(new_scales(t, k), s[k] + c * kChunk);
    }
  }

  template <int kIndex, bool kWide>
  __device__ float chunk(const Work& now, std::int64_t at, const float (&scale)[kStates], Eights& p,
                         float (&s)[kStates][2 * kChunk], Bounds& bounds) const {
    const TensorEntry& t = entry(now);
    decode_slots<kIndex>(now, at, scale, s, std::make_integer_sequence<int, kSlots>{});
    float weights[kChunk];
    float grads[kChunk];
    load_weights<kIndex>(now, t, at, p);
    p.unpack(t, weights);
    load_grads<kIndex, kWide>(now, t, at, grads);
    update8(weights, grads, s, kIndex * kChunk, bounds);
    return p.pack(t, prepared_.round_base, at, weights);
  }

  template <int kIndex, int... kSlot>
  __device__ void decode_slots(const Work& now, std::int64_t at, const float (&scale)[kStates],
                               float (&s)[kStates][2 * kChunk], std::integer_sequence<int, kSlot...>) const {
    const auto get = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      const auto words =
          share<kIndex, typename Arrays::template Codes<kOne>>(now, entry(now).codes[kOne], at);
      float* to = s[kOne] + kIndex * kChunk;
      Codes::template decode<moment(kOne)>(tables(), reinterpret_cast<const std::uint32_t*>(&words), to);
      float own[kChunk];
      if constexpr (own_scale(kOne)) AxisRow(entry(now), at).scales(entry(now).scales[kOne], own);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) to[i] *= own_scale(kOne) ? own[i] : scale[kOne];
    };
    (get(std::integral_constant<int, kSlot>{}), ...);
  }

  template <int kIndex, int... kSlot>
  static __device__ void encode_slots(const TensorEntry& t, std::int64_t at,
                                      const float (&s)[kStates][2 * kChunk], const Scale (&scale)[kStates],
                                      std::integer_sequence<int, kSlot...>) {
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      using Array = typename Arrays::template Codes<kOne>;
      typename Array::Share words;
      const float* from = s[kOne] + kIndex * kChunk;
      if constexpr (own_scale(kOne)) {
        float x[kChunk];
        AxisRow(t, at).scales(new_scales(t, kOne), x);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) x[i] = over_own_scale(from[i], x[i]);
        Codes::template encode<Moment::second>(tables(), x, 1.0F, reinterpret_cast<std::uint32_t*>(&words));
      } else {
        encode_words<kOne>(from, scale[kOne], reinterpret_cast<std::uint32_t*>(&words));
      }
      Array::put(t.codes[kOne], at, words);
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }

  template <int kSlot>
  static __device__ void encode_words(const float* s, const Scale& scale, std::uint32_t* words) {
    Codes::template encode<moment(kSlot)>(tables(), s, scale.inverse, words);
    if (!scale.finite) {
#pragma unroll
      for (int w = 0; w < Codes::kWords; ++w) words[w] = 0;
    }
  }

  // Anything else with blocks: ends of tensors, unaligned ones, blocks larger than a tile, rank-1 scales.
  static __device__ __noinline__ void slow_unit(const StepParams& params, const Prepared& prepared,
                                                const TensorEntry& t, std::int64_t at) {
    const int tiles = t.block > kTile ? t.block / kTile : 1;
    const bool measure_only = Codec::kRank1 && params.measure != 0;
    std::uint32_t whole[kStates] = {};  // maxima of a block that is larger than a tile
    if (tiles > 1 || measure_only) {
      Bounds bounds;
      for (int i = 0; i < tiles; ++i) measure(t, prepared, at + i * kTile, place(t, at + i * kTile), bounds);
      if (measure_only) return;
#pragma unroll
      for (int k = 0; k < kSlots; ++k) whole[k] = reduce_max(bounds.high[k], 32);
    }
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      const std::int64_t tile_at = at + i * kTile;
      const Place where = place(t, tile_at);
      float s[kStates][2 * kChunk];
      Bounds bounds;
#pragma unroll 1
      for (int c = 0; c < 2; ++c) {
        const std::int64_t e = tile_at + where.first + c * where.apart;
        float out[kStates * kChunk];
        careful<Codec>(t, prepared, e, valid_at(t, e), true, out);
        for (int j = 0; j < kChunk; ++j) {
          float kept[kStates] = {};
#pragma unroll
          for (int k = 0; k < kSlots; ++k) s[k][c * kChunk + j] = kept[k] = out[k * kChunk + j];
          bounds.add(kept);
        }
      }
      Scale encoded[kStates];
      const std::int64_t block_at = tiles > 1 ? at : tile_at + where.first - where.lane * kChunk;
      // A block's scale changes with its last tile: those before are decoded by the old one.
      scales(t, where, i == tiles - 1 && block_at<t.numel, bounds, tiles> 1 ? whole : nullptr, encoded);
#pragma unroll 1
      for (int c = 0; c < 2; ++c) {
        const std::int64_t e = tile_at + where.first + c * where.apart;
        encode_slow(t, e, valid_at(t, e), s, c, encoded, std::make_integer_sequence<int, kSlots>{});
      }
    }
  }

  template <int... kSlot>
  static __device__ void encode_slow(const TensorEntry& t, std::int64_t at, int valid,
                                     const float (&s)[kStates][2 * kChunk], int c,
                                     const Scale (&scale)[kStates], std::integer_sequence<int, kSlot...>) {
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      std::uint32_t words[Codes::kWords];
      if constexpr (own_scale(kOne)) {
        float x[kChunk] = {};
        if (valid > 0) scale_by_axes(t, new_scales(t, kOne), at, valid, s[kOne] + c * kChunk, x);
        Codes::template encode<Moment::second>(tables(), x, 1.0F, words);
      } else {
        encode_words<kOne>(s[kOne] + c * kChunk, scale[kOne], words);
        if constexpr (kZeroCode && is_second(kOne)) {
#pragma unroll
          for (int i = 0; i < kChunk; ++i)
            if (s[kOne][c * kChunk + i] == 0.0F) words[i / 4] &= ~(255U << (8 * (i % 4)));
        }
      }
      if constexpr (Codec::kBits == 4) {
        if (valid % 2 == 1) words[0] &= ~(15U << (8 * (valid / 2)));  // an odd end leaves its low nibble zero
      }
      auto* bytes = static_cast<std::uint8_t*>(t.codes[kOne]) + at * Codec::kBits / 8;
#pragma unroll
      for (int i = 0; i < Codec::kBits; ++i) {
        if (i < (valid * Codec::kBits + 7) / 8)
          bytes[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
      }
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }

  // A moment over its own scale; where that is zero or not finite, zero.
  static __device__ float over_own_scale(float moment, float own) {
    const bool usable = own > 0.0F && __float_as_uint(own) < static_cast<std::uint32_t>(formula::kInf32);
    return usable ? moment * (1.0F / own) : 0.0F;
  }
  static __device__ void scale_by_axes(const TensorEntry& t, const float* maxima, std::int64_t at, int valid,
                                       const float* s, float* x) {
    AxisWalk walk(t, at);
    for (int i = 0; i < valid; ++i) {
      x[i] = over_own_scale(s[i], walk.scale(maxima));
      if (i + 1 < valid) walk.next();
    }
  }

  // The moments a step would give, without taking it.
  static __device__ void measure(const TensorEntry& t, const Prepared& prepared, std::int64_t tile_at,
                                 const Place& where, Bounds& bounds) {
#pragma unroll 1
    for (int c = 0; c < 2; ++c) {
      const std::int64_t at = tile_at + where.first + c * where.apart;
      const int valid = valid_at(t, at);
      if (valid == 0) continue;
      float out[kStates * kChunk];
      careful<Codec>(t, prepared, at, valid, false, out);
      for (int i = 0; i < valid; ++i) {
        float kept[kStates] = {};
        for (int k = 0; k < kSlots; ++k) kept[k] = out[k * kChunk + i];
        bounds.add(kept);
      }
      if constexpr (Codec::kRank1) raise_axes(t, at, valid, out);
    }
  }
  static __device__ void raise_axes(const TensorEntry& t, std::int64_t at, int valid, const float* out) {
    for (int k = 0; k < kSlots; ++k) {
      if (!own_scale(k)) continue;
      AxisWalk walk(t, at);
      for (int i = 0; i < valid; ++i) {
        walk.raise(new_scales(t, k), out[k * kChunk + i]);
        if (i + 1 < valid) walk.next();
      }
    }
  }
  // Second moments follow one another in the workspace.
  static __device__ float* new_scales(const TensorEntry& t, int slot) {
    std::int64_t count = 0;
    if (slot == 2)
      for (int axis = 0; axis < t.ndim; ++axis) count += t.shape[axis];
    return t.new_scales + count;
  }

  static __device__ std::uint32_t reduce_max(float value, int lanes) {
    std::uint32_t bits = __float_as_uint(value);
    for (int o = 1; o < lanes; o *= 2) bits = max(bits, __shfl_xor_sync(~0U, bits, o));
    return bits;
  }

  // Scales of a block from its lanes' maxima, written by its first lanes.
  static __device__ void scales(const TensorEntry& t, const Place& where, bool exists, const Bounds& bounds,
                                const std::uint32_t* whole, Scale (&out)[kStates]) {
    if constexpr (kSlots == 2 && !Codec::kRank1) {
      // Even lanes take the first moment, odd ones the second: one reduction and one reciprocal for both.
      const bool odd = (threadIdx.x & 1U) != 0;
      std::uint32_t mine;
      if (whole != nullptr) {
        mine = odd ? whole[1] : whole[0];
      } else {
        const std::uint32_t first = __float_as_uint(bounds.high[0]);
        const std::uint32_t second = __float_as_uint(bounds.high[1]);
        mine = max(odd ? second : first, __shfl_xor_sync(~0U, odd ? first : second, 1));
        if (where.lanes == Codec::kDefaultBlock / (2 * kChunk)) {
#pragma unroll
          for (int o = 2; o < Codec::kDefaultBlock / (2 * kChunk); o *= 2)
            mine = max(mine, __shfl_xor_sync(~0U, mine, o));
        } else {
          for (int o = 2; o < where.lanes; o *= 2) mine = max(mine, __shfl_xor_sync(~0U, mine, o));
        }
      }
      const formula::BlockScale scale = scale_of(mine, Codec::kLargest);
      if (where.lane < 2 && exists) (odd ? t.scales[1] : t.scales[0])[where.block] = scale.scale;
      const float coded = scale.finite ? scale.inverse : -1.0F;
      const float other = __shfl_xor_sync(~0U, coded, 1);
      const float inverse[2] = {odd ? other : coded, odd ? coded : other};
#pragma unroll
      for (int k = 0; k < 2; ++k) out[k] = {fmaxf(inverse[k], 0.0F), inverse[k] >= 0.0F};
    } else {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (own_scale(k)) continue;
        const std::uint32_t bits = whole != nullptr ? whole[k] : reduce_max(bounds.high[k], where.lanes);
        const formula::BlockScale scale = scale_of(bits, Codec::kLargest);
        if (where.lane == 0 && exists) t.scales[k][where.block] = scale.scale;
        out[k] = {scale.inverse, scale.finite};
      }
    }
  }

  // ---- formats without: fp32 and bf16, and small tensors beside another format ----

  template <bool kWide>
  __device__ bool plain_tile(const Work& now) const {
    const std::int64_t first = at(now) + lane() * 4;
    plain_chunk<0, kWide>(now, first);
    plain_chunk<1, kWide>(now, first + kTile / 2);
    return true;
  }

  // Half a tile. What is not in range is done again, element by element, before any of it is written.
  template <int kIndex, bool kWide>
  __device__ void plain_chunk(const Work& now, std::int64_t at) const {
    const TensorEntry& t = entry(now);
    float s[kStates][kChunk];
    Bounds bounds;
    load_states<kIndex>(now, t, at, s, std::make_integer_sequence<int, kSlots>{});
    Eights p;
    float weights[kChunk];
    float grads[kChunk];
    load_weights<kIndex>(now, t, at, p);
    p.unpack(t, weights);
    load_grads<kIndex, kWide>(now, t, at, grads);
    update8(weights, grads, s, 0, bounds);
    const float watch = p.pack(t, prepared_.round_base, at, weights);
    bool good = bounds.in_range() && watch == 0.0F;
    if constexpr (!kDivides) {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) good = good && bounds.high[k] <= kLargeSecond;
    }
    if (__any_sync(~0U, !good)) {
      slow_plain_chunk(prepared_, t, at, 4);
      slow_plain_chunk(prepared_, t, at + kQuadApart, 4);
      return;
    }
    store_weights(t, at, p);
    store_states(t, at, s, std::make_integer_sequence<int, kSlots>{});
  }

  template <int kIndex, int... kSlot>
  static __device__ void load_states(const Work& now, const TensorEntry& t, std::int64_t at,
                                     float (&s)[kStates][kChunk], std::integer_sequence<int, kSlot...>) {
    const auto get = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      const auto words = share<kIndex, typename Arrays::template Codes<kOne>>(now, t.codes[kOne], at);
      if constexpr (State::kBits == 32) {
        as_floats(words, s[kOne]);
      } else {
        unpack_bf16x8(words_of(words), s[kOne]);
      }
    };
    (get(std::integral_constant<int, kSlot>{}), ...);
  }
  template <int... kSlot>
  __device__ void store_states(const TensorEntry& t, std::int64_t at, const float (&s)[kStates][kChunk],
                               std::integer_sequence<int, kSlot...>) const {
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      using Array = typename Arrays::template Codes<kOne>;
      if constexpr (State::kBits == 32) {
        Array::put(t.codes[kOne], at, as_eight<true>(s[kOne]));
      } else {
        const formula::RoundKey key = state_key(prepared_, t, kOne);
        const auto index = static_cast<std::uint64_t>(t.offset + at);
        std::uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int e = 2 * i < 4 ? 2 * i : kQuadApart + 2 * i - 4;
          w[i] = narrow_state(kOne, key, index, e, s[kOne][2 * i]) |
                 narrow_state(kOne, key, index, e + 1, s[kOne][2 * i + 1]) << 16;
        }
        Array::put(t.codes[kOne], at, eight_of<true>(make_uint4(w[0], w[1], w[2], w[3])));
      }
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }

  static __device__ __noinline__ void slow_plain(const Prepared& prepared, const TensorEntry& t,
                                                 std::int64_t at) {
#pragma unroll 1
    for (int c = 0; c < 2; ++c) slow_plain_chunk(prepared, t, at + c * (kTile / 2) + lane() * kChunk, kChunk);
  }
  static __device__ __noinline__ void slow_plain_chunk(const Prepared& prepared, const TensorEntry& t,
                                                       std::int64_t at, int most) {
    const int valid = min(valid_at(t, at), most);
    float out[kStates * kChunk];
    careful<State>(t, prepared, at, valid, true, out);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) store_plain(prepared, t, k, at, valid, out + k * kChunk);
  }

  // A bf16 state, to nearest or, of a second moment, stochastically and never to zero.
  static __device__ std::uint32_t narrow_state(int slot, const formula::RoundKey& key, std::uint64_t index,
                                               int i, float value) {
    const scalar::F32 x = formula::canonical(scalar::F32(value));
    if (!is_second(slot)) return formula::float_to_bf16(x).u() & 0xFFFFU;
    const scalar::I32 half =
        formula::float_to_bf16_stochastic(x, formula::random16(key, index, scalar::I32(i)));
    return (x.v > 0.0F ? max(half, scalar::I32(1)) : half).u() & 0xFFFFU;
  }
  static __device__ formula::RoundKey state_key(const Prepared& prepared, const TensorEntry& t, int slot) {
    return formula::round_key(prepared.round_base, t.id, 1U + static_cast<std::uint32_t>(slot));
  }

  static __device__ void store_plain(const Prepared& prepared, const TensorEntry& t, int slot,
                                     std::int64_t at, int valid, const float* s) {
    for (int i = 0; i < valid; ++i) {
      if constexpr (State::kBits == 32) {
        static_cast<float*>(t.codes[slot])[at + i] = formula::canonical(scalar::F32(s[i])).v;
      } else {
        static_cast<std::uint16_t*>(t.codes[slot])[at + i] = static_cast<std::uint16_t>(narrow_state(
            slot, state_key(prepared, t, slot), static_cast<std::uint64_t>(t.offset + at), i, s[i]));
      }
    }
  }

  const StepParams& params_;
  const Prepared& prepared_;
  Consts c_;
  const bool in_range_;
  const std::uint32_t stages_;  // the warp's two
};

template <class Algo, class Codec, WeightKind kKind>
__global__ void __launch_bounds__(Step<Algo, Codec, kKind>::Map::threads(kArch), 1)
    step_kernel(const __grid_constant__ StepParams params) {
  const Prepared& prepared = params.prepared != nullptr ? *params.prepared : params.constants;
  if (prepared.skip != 0) return;
  Packed<Codec>::fill_tables(tables());
  __syncthreads();
  // From a shuffle the compiler knows that the warp's lanes agree.
  const std::uint32_t warp = __shfl_sync(~0U, threadIdx.x / 32, 0);
  Step<Algo, Codec, kKind>(params, prepared, warp).run(gridDim.x * (blockDim.x / 32));
}

}  // namespace octavo::cuda
