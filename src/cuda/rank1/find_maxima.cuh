// The first pass of rank-1 scales: finds the maxima of the new moments before any of them is written.
//
// A warp processes a panel (cuda/step/tensor_table.h, Rank1View). A lane keeps the maxima of its eight
// columns while it walks down the rows, and the lanes of a row join its maxima. Memory is accessed once for
// each column and row of the panel.
//
// The rule's own update computes all moments. Its other inputs are loaded with instructions that the compiler
// may drop. So a rule whose second moments need only gradients and themselves loads nothing else, and a rule
// that needs more is still correct. Rows and columns beyond the end repeat the last, which raises no maximum.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/rank1/scales.cuh"
#include "cuda/step/kernels.h"
#include "cuda/step/traits.cuh"
#include "cuda/step/weights.cuh"

namespace octavo::cuda {

// Loads data that no thread of the kernel writes.
template <class V>
__device__ inline V peek(const void* base, std::int64_t bytes) {
  const auto at = __cvta_generic_to_global(static_cast<const char*>(base) + bytes);
  V out;
  if constexpr (sizeof(V) == 16) {
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
        : "l"(at));
  } else if constexpr (sizeof(V) == 8) {
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(out.x), "=r"(out.y) : "l"(at));
  } else {
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(out) : "l"(at));
  }
  return out;
}
__device__ inline std::uint32_t peek_half(const char* from) {
  std::uint16_t out;
  asm("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(out) : "l"(__cvta_generic_to_global(from)));
  return out;
}
template <class Share>
__device__ inline Share peek_eight(const void* base, std::int64_t element) {
  Share out;
#pragma unroll
  for (int p = 0; p < Share::kPieces; ++p)
    out.piece[p] =
        peek<typename Share::Word>(base, element * (Share::kBytes * Share::kPieces) / 8 + p * Share::kApart);
  return out;
}
template <int kBits>
__device__ inline std::uint32_t get_code(const std::uint32_t* words, int i) {
  const int bit = i * kBits;
  const auto byte = [&](int b) { return b < kBits ? (words[b / 4] >> (8 * (b % 4))) & 255U : 0U; };
  return ((byte(bit / 8) << 8 | byte(bit / 8 + 1)) >> (16 - kBits - bit % 8)) & ((1U << kBits) - 1);
}

// Loads from any element's address. `from` is the address of the first element.
__device__ inline void peek_unaligned(const char* from, Eight<32, false>& out) {
  std::uint32_t w[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) w[i] = peek<unsigned>(from, 4 * i);
  out.piece[0] = make_uint4(w[0], w[1], w[2], w[3]);
  out.piece[1] = make_uint4(w[4], w[5], w[6], w[7]);
}
__device__ inline void peek_unaligned(const char* from, Eight<16, false>& out) {
  // Loads the aligned words that contain the elements, and one more if the elements begin in the middle of a
  // word.
  const std::uint32_t shift = (static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(from)) & 2U) * 8U;
  const char* const start = from - shift / 8;
  std::uint32_t w[5];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = peek<unsigned>(start, 4 * i);
  w[4] = shift != 0 ? peek_half(start + 16) : 0U;
  out.piece[0] = make_uint4(__funnelshift_r(w[0], w[1], shift), __funnelshift_r(w[1], w[2], shift),
                            __funnelshift_r(w[2], w[3], shift), __funnelshift_r(w[3], w[4], shift));
}

// How the arrays of a panel are read: by vectors, with gradients in bf16 or fp32, or with other or unaligned
// gradients; or element by element if rows are not aligned.
enum class PanelReads { bf16, wide, others, singly };

// A lane's address in the rows of an array.
struct Rows {
  const char* base;
  std::uint32_t stride;  // in bytes

  Rows() = default;
  __device__ Rows(const void* array, std::int64_t element, std::int64_t columns, int bits)
      : base(static_cast<const char*>(array) + element * bits / 8),
        stride(static_cast<std::uint32_t>(columns * bits / 8)) {
    asm("" : "+l"(base));  // opaque: otherwise the compiler adds its parts again at every row
  }
  [[nodiscard]] __device__ const char* at(int row) const {
    return base + static_cast<std::uint64_t>(static_cast<std::uint32_t>(row)) * stride;
  }
  template <class Share>
  [[nodiscard]] __device__ Share get(int row) const {
    return peek_eight<Share>(at(row), 0);
  }
};

template <class Algo, class Format, WeightKind kKind>
class Rank1Pass : StepTraits<Algo, Format> {
  using Traits = StepTraits<Algo, Format>;
  using Traits::for_slots, Traits::is_second, Traits::kOwn, Traits::kOwnSlots, Traits::kSlots,
      Traits::kStates, Traits::lane, Traits::moment, Traits::own_index, Traits::own_scale,
      typename Traits::Codes, typename Traits::Consts;
  using Arrays = TileArrays<kKind, true>;
  using Eights = Weights<kKind, Arrays>;
  static constexpr int kMostWords = 2;

 public:
  static constexpr int kThreads = 768;
  static constexpr int threads(int /*arch*/) { return kThreads; }
  // Only decoding tables have a start; encoding tables are before them.
  static constexpr int start(int arch) { return Codes::copied(arch) ? kReservedShared : 0; }
  static constexpr int bytes(int arch) {
    return Codes::copied(arch) ? kCopiesAlignment + kCopiesBytes : Codes::table_bytes(arch);
  }

  __device__ Rank1Pass(const StepParams& params, const Prepared& prepared)
      : params_(params), c_(*reinterpret_cast<const Consts*>(prepared.consts)) {}

  __device__ void run(std::uint32_t warp, std::uint32_t warps) const {
    for (std::uint32_t panel = warp; panel < params_.units; panel += warps) {
      const TensorEntry* t = params_.tensors + params_.map[panel / kMapStep];
      while (t[1].rank1.first_panel <= panel) ++t;
      if (c_.coupled) {
        find_panel_maxima<true>(*t, panel - t->rank1.first_panel);
      } else {
        find_panel_maxima<false>(*t, panel - t->rank1.first_panel);
      }
    }
  }

 private:
  template <PanelReads kReads>
  static constexpr bool kSingly = kReads == PanelReads::singly;
  template <PanelReads kReads>
  static constexpr bool kWide = kReads == PanelReads::wide;

  // The lane's position in a panel, and the addresses of its arrays.
  template <PanelReads kReads>
  struct Lane {
    const TensorEntry& t;
    int mine;             // the lane's number
    int row;              // its row among the rows of a step
    int rows;             // rows of the panel
    int bits;             // 2^bits lanes share a row
    std::int64_t first;   // the tensor's row of the panel's first
    std::int64_t column;  // the first of the lane's eight columns
    Rows grad, param, residual, codes[kStates];
    bool f32, bf16, unaligned;  // properties of the gradients

    __device__ Lane(const TensorEntry& entry, std::uint32_t index) : t(entry) {
      const Rank1View& v = t.rank1;
      bits = v.lane_bits;
      mine = Traits::lane();
      row = mine >> bits;
      const std::uint32_t group = index / v.strips;
      first = static_cast<std::int64_t>(group) * panel_rows(bits);
      rows = static_cast<int>(min(static_cast<std::int64_t>(panel_rows(bits)), v.rows - first));
      const std::int64_t chunk =
          (static_cast<std::int64_t>(index - group * v.strips) << bits) + (mine & ((1 << bits) - 1));
      column = min(chunk * kChunk, v.columns - (kSingly<kReads> ? 1 : kChunk));
      f32 = is_f32(t.grad_dtype);
      bf16 = is_bf16(t.grad_dtype);
      unaligned = !vectors(t.grad);
      if constexpr (!kSingly<kReads>) {
        const std::int64_t e = first * v.columns + column;
        grad = Rows(t.grad, e, v.columns, f32 ? 32 : 16);
        param = Rows(t.param, e, v.columns, Arrays::kParamBits);
        residual = Rows(t.residual, e, v.columns, Arrays::kResidualBits);
        for_slots([&](auto slot) {
          codes[slot()] = Rows(t.codes[slot()], e, v.columns, Traits::template Codec<slot()>::kBits);
        });
      }
    }
    // Returns the index of element i of the lane's eight in a row of the panel. Elements are repeated at the
    // end of a row.
    [[nodiscard]] __device__ std::int64_t element(int panel_row, int i) const {
      return (first + panel_row) * t.rank1.columns + min(column + i, t.rank1.columns - 1);
    }
  };

  // A lane's part of a row before it is unpacked.
  template <PanelReads kReads>
  struct Raw {
    Eight<kWide<kReads> ? 32 : 16, false> grad;
    float grads[kChunk];  // unpacked where they were read
    Eights weight;
    float weights[kChunk];  // unpacked as well
    std::uint32_t codes[kStates][kMostWords];
    float scales[kStates][kChunk];  // the scales of blocks
  };

  static __device__ std::uint64_t address(const void* data) { return reinterpret_cast<std::uint64_t>(data); }
  static __device__ bool vectors(const void* data) { return (address(data) & 15U) == 0; }

  template <bool kCoupled>
  __device__ void find_panel_maxima(const TensorEntry& t, std::uint32_t index) const {
    // All pointers are checked at once: a branch between two loads would wait for the first.
    std::uint64_t all = address(t.param) | address(t.residual);
    for (int k = 0; k < kSlots; ++k) all |= address(t.codes[k]);
    const std::int64_t columns = t.rank1.columns;
    if (((all & 15U) | (columns % kChunk)) != 0 || columns >= std::int64_t{1} << 29) {
      panel<PanelReads::singly, kCoupled>(t, index);
    } else if (!vectors(t.grad)) {
      panel<PanelReads::others, kCoupled>(t, index);
    } else if (is_f32(t.grad_dtype)) {
      panel<PanelReads::wide, kCoupled>(t, index);
    } else if (is_bf16(t.grad_dtype)) {
      panel<PanelReads::bf16, kCoupled>(t, index);
    } else {
      panel<PanelReads::others, kCoupled>(t, index);
    }
  }

  template <PanelReads kReads, bool kCoupled>
  __device__ void panel(const TensorEntry& t, std::uint32_t index) const {
    constexpr bool kLarge = kCoupled && (kWide<kReads> || kKind == WeightKind::f32);
    constexpr int kTogether = kSingly<kReads>                                      ? 1
                              : kLarge || kOwn > 1 || kReads == PanelReads::others ? 2
                                                                                   : 4;
    const Rank1View& v = t.rank1;
    const Lane<kReads> at(t, index);
    const int abreast = rows_abreast(at.bits);
    float column_scale[kOwn][kChunk];
    float row_scale[kOwn];
    float high_column[kOwn][kChunk] = {};
    float high_row[kOwn] = {};
#pragma unroll
    for (int m = 0; m < kOwnSlots; ++m) {
      row_scale[m] = old_rows(v, m)[at.first + min(at.mine, at.rows - 1)];
      if constexpr (kSingly<kReads>) {
        for (int i = 0; i < kChunk; ++i)
          column_scale[m][i] = old_columns(v, m)[min(at.column + i, v.columns - 1)];
      } else {
        load_eight(old_columns(v, m) + at.column, column_scale[m]);
      }
    }
#pragma unroll 1
    for (int from = 0; from < at.rows; from += kTogether * abreast) {
      Raw<kReads> raw[kTogether];
      int row[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        row[u] = min(from + u * abreast + at.row, at.rows - 1);
        fetch<kReads>(at, row[u], raw[u]);
      }
      float high[kOwn][kTogether];
      float before[kOwn]
                  [kChunk];  // the previous row, which enters the columns' maxima together with this one
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        float scale[kOwn];
        float size[kOwn][kChunk];
#pragma unroll
        for (int m = 0; m < kOwnSlots; ++m) scale[m] = __shfl_sync(~0U, row_scale[m], row[u]);
        update<kReads, kCoupled>(at, raw[u], scale, column_scale, size);
#pragma unroll
        for (int m = 0; m < kOwnSlots; ++m) {
          high[m][u] = largest_of(size[m]);
#pragma unroll
          for (int i = 0; i < kChunk; ++i) {
            const float other = kTogether == 1 ? size[m][i] : before[m][i];
            if (kTogether == 1 || u % 2 == 1)
              high_column[m][i] = max_of_bits(high_column[m][i], other, size[m][i]);
            before[m][i] = size[m][i];
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kOwnSlots; ++m) store_row_maxima(high[m], at.bits, at.mine, from, high_row[m]);
    }
#pragma unroll
    for (int m = 0; m < kOwnSlots; ++m) raise_slice_maxima(at, m, high_row[m], high_column[m]);
  }

  // The maximum of each row goes to the lane with the row's number in the panel.
  template <int kTogether>
  static __device__ void store_row_maxima(const float (&high)[kTogether], int lane_bits, int mine, int from,
                                          float& kept) {
    if constexpr (joins_lanes(kArch)) {
      if (lane_bits == 5) {
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
          std::uint32_t bits;
          asm volatile("redux.sync.max.u32 %0, %1, 0xFFFFFFFF;" : "=r"(bits) : "r"(__float_as_uint(high[u])));
          if (mine == from + u) kept = __uint_as_float(bits);
        }
        return;
      }
    }
    const int abreast = rows_abreast(lane_bits);
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      std::uint32_t bits = __float_as_uint(high[u]);
      for (int o = 1; o < 1 << lane_bits; o *= 2) bits = max(bits, __shfl_xor_sync(~0U, bits, o));
      const int among = mine - from - u * abreast;
      bits = __shfl_sync(~0U, bits, among << lane_bits);
      if (among >= 0 && among < abreast) kept = __uint_as_float(bits);
    }
  }

  template <PanelReads kReads>
  static __device__ void fetch(const Lane<kReads>& at, int row, Raw<kReads>& out) {
    const TensorEntry& t = at.t;
    if constexpr (kSingly<kReads>) {
#pragma unroll 1
      for (int i = 0; i < kChunk; ++i) {
        out.grads[i] = load_one(t.grad, t.grad_dtype, at.element(row, i));
        out.weights[i] = load_weight<kKind>(t, at.element(row, i));
      }
    } else {
      if constexpr (kReads == PanelReads::others) {
        if (at.f32) {
          Eight<32, false> words;
          peek_unaligned(at.grad.at(row), words);
          as_floats(words, out.grads);
        } else {
          Eight<16, false> words;
          if (at.unaligned) {
            peek_unaligned(at.grad.at(row), words);
          } else {
            words = at.grad.template get<Eight<16, false>>(row);
          }
          if (at.bf16) {
            unpack_bf16x8(words.piece[0], out.grads);
          } else {
            unpack_halves<false>(words.piece[0], static_cast<std::uint8_t>(DType::f16), out.grads);
          }
        }
      } else {
        out.grad = at.grad.template get<decltype(out.grad)>(row);
      }
      out.weight.param = at.param.template get<typename Arrays::Param::Share>(row);
      if constexpr (Arrays::kResidualBits > 0)
        out.weight.residual = at.residual.template get<typename Arrays::Residual::Share>(row);
    }
    for_slots([&](auto slot) {
      constexpr int kBits = Traits::template Codec<slot()>::kBits;
      static_assert(kBits <= 4 * kMostWords);
      if constexpr (kSingly<kReads> || !(kBits == 4 || kBits == 8)) {
        for (int w = 0; w < kMostWords; ++w) out.codes[slot()][w] = 0;
#pragma unroll 1
        for (int i = 0; i < kChunk; ++i)
          put_code<kBits>(
              out.codes[slot()], i,
              load_code<kBits>(static_cast<const std::uint8_t*>(t.codes[slot()]), at.element(row, i)));
      } else {
        const auto words = at.codes[slot()].template get<Eight<kBits, false>>(row);
        for (int w = 0; w < kBits / 4; ++w)
          out.codes[slot()][w] = reinterpret_cast<const std::uint32_t*>(&words)[w];
      }
      if constexpr (!own_scale(slot())) {
        for (int i = 0; i < kChunk; ++i)
          out.scales[slot()][i] = t.scales[slot()][at.element(row, i) / t.block];
      }
    });
  }

  static __device__ float largest_of(const float (&size)[kChunk]) {
    float out = max_of_bits(size[0], size[1], size[2]);
    out = max_of_bits(out, size[3], size[4]);
    return max_of_bits(max_of_bits(out, size[5], size[6]), size[7], size[7]);
  }

  // Computes the magnitudes of a row's moments after the step. Second moments are not negative, and a NaN
  // that was computed has no sign.
  template <PanelReads kReads, bool kCoupled>
  __device__ void update(const Lane<kReads>& at, const Raw<kReads>& raw, const float (&row_scale)[kOwn],
                         const float (&column_scale)[kOwn][kChunk], float (&size)[kOwn][kChunk]) const {
    float g[kChunk];
    float p[kChunk];
    float s[kStates][kChunk];
    if constexpr (kReads == PanelReads::bf16) {
      unpack_bf16x8(raw.grad.piece[0], g);
    } else if constexpr (kReads == PanelReads::wide) {
      as_floats(raw.grad, g);
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) g[i] = raw.grads[i];
    }
    if constexpr (kSingly<kReads>) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) p[i] = raw.weights[i];
    } else {
      raw.weight.template unpack<false>(at.t, p);
    }
    for_slots([&](auto slot) {
      constexpr Moment kMoment = moment(slot());
      if constexpr (Codes::kQuick) {
        Codes::template decode<kMoment>(tables(), raw.codes[slot()], s[slot()]);
      } else {
        for (int i = 0; i < kChunk; ++i)
          s[slot()][i] = kValues<typename Format::template Map<kMoment>, kMoment>.value
                             [get_code<Traits::template Codec<slot()>::kBits>(raw.codes[slot()], i)];
      }
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        s[slot()][i] *= own_scale(slot())
                            ? smaller_scale(row_scale[own_index(slot())], column_scale[own_index(slot())][i])
                            : raw.scales[slot()][i];
    });
    Consts c = c_;
    c.coupled = kCoupled;
    if constexpr (Traits::kHasTrustRatio) c.ratio = at.t.ratio;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      scalar::F32 state[kStates];
#pragma unroll
      for (int k = 0; k < kSlots; ++k) state[k] = scalar::F32(s[k][i]);
      const scalar::F32 before(p[i]);
      (void)Algo::update(c, formula::gradient(c, scalar::F32(g[i]), before), before, state);
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
        if (own_scale(k)) size[own_index(k)][i] = is_second(k) ? state[k].v : fabsf(state[k].v);
    }
  }

  template <PanelReads kReads>
  static __device__ void raise_slice_maxima(const Lane<kReads>& at, int m, float high_row,
                                            const float (&high_column)[kChunk]) {
    const TensorEntry& t = at.t;
    float* const maxima = new_maxima(t, m);
    const bool has_row = at.mine < at.rows;
    const std::uint32_t bits = __float_as_uint(high_row);
    if (has_row) raise_slices(t, maxima, true, at.first + at.mine, bits);
    const std::int64_t only = only_long_axis(t, t.rank1.leading, t.ndim);
    const auto column = [&](int i) {
      return kSingly<kReads> ? min(at.column + i, t.rank1.columns - 1) : at.column + i;
    };
    if (only >= 0) {
      // All are read before one is compared, because each read has the latency of memory.
      std::uint32_t known[kChunk];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) known[i] = __float_as_uint(maxima[only + column(i)]);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const std::uint32_t high = __float_as_uint(high_column[i]);
        if (known[i] < high) atomicMax(reinterpret_cast<std::uint32_t*>(maxima + only + column(i)), high);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        raise_slices(t, maxima, false, column(i), __float_as_uint(high_column[i]));
    }
    // An axis of length one has one slice with all elements.
    const std::uint32_t all = warp_max(has_row ? bits : 0U);
    if (at.mine == 0) raise_ones(t, maxima, all);
  }
  static __device__ __noinline__ void raise_ones(const TensorEntry& t, float* maxima, std::uint32_t bits) {
    std::int64_t start = 0;
    for (int axis = 0; axis < t.ndim; ++axis) {
      if (t.shape[axis] == 1) raise_maximum(maxima + start, bits);
      start += t.shape[axis];
    }
  }

  // Raises the maxima of slices of several axes.
  static __device__ __noinline__ void raise_slices(const TensorEntry& t, float* maxima, bool row,
                                                   std::int64_t index, std::uint32_t bits) {
    for_slices<false>(t, row, index, [&](std::int64_t slice) { raise_maximum(maxima + slice, bits); });
  }

  const StepParams& params_;
  const Consts c_;
};

template <class Algo, class Format, WeightKind kKind>
__global__ void __launch_bounds__(Rank1Pass<Algo, Format, kKind>::kThreads, 1)
    rank1_kernel(const __grid_constant__ StepParams params) {
  start_pass<Format>(params, [&](const Prepared& prepared, std::uint32_t warp, std::uint32_t warps) {
    Rank1Pass<Algo, Format, kKind>(params, prepared).run(blockIdx.x * warps + warp, gridDim.x * warps);
  });
}

}  // namespace octavo::cuda
