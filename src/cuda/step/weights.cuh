// Converts eight weights or gradients of a lane between words and floats.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/tile_io.cuh"

namespace octavo::cuda {

// Returns the words of eight sixteen-bit elements, in either layout.
__device__ inline uint4 words_of(const Eight<16, false>& from) { return from.piece[0]; }
__device__ inline uint4 words_of(const Eight<16, true>& from) {
  return make_uint4(from.piece[0].x, from.piece[0].y, from.piece[1].x, from.piece[1].y);
}
template <bool kQuads>
__device__ inline Eight<16, kQuads> eight_of(const uint4& words) {
  Eight<16, kQuads> out;
  if constexpr (kQuads) {
    out.piece[0] = make_uint2(words.x, words.y);
    out.piece[1] = make_uint2(words.z, words.w);
  } else {
    out.piece[0] = words;
  }
  return out;
}
template <bool kQuads>
__device__ inline void as_floats(const Eight<32, kQuads>& from, float* out) {
  as_floats(from.piece[0], out);
  as_floats(from.piece[1], out + 4);
}
template <bool kQuads>
__device__ inline Eight<32, kQuads> as_eight(const float* x) {
  return {{as_words(x), as_words(x + 4)}};
}

template <bool kBf16, bool kQuads>
__device__ inline void unpack_grads(const Eight<32, kQuads>& from, const TensorEntry& /*t*/, float* out) {
  as_floats(from, out);
}
template <bool kBf16, bool kQuads>
__device__ inline void unpack_grads(const Eight<16, kQuads>& from, const TensorEntry& t, float* out) {
  unpack_halves<kBf16>(words_of(from), t.grad_dtype, out);
}

// Returns the index of a tensor's position in the complete parameter.
template <bool kQuads>
__device__ inline std::uint64_t index_of(const TensorEntry& t, std::uint32_t place) {
  return static_cast<std::uint64_t>(t.offset) + std::uint64_t{kUnit<kQuads>} * place;
}

// Properties of new weights: NaN if one is NaN or infinite, otherwise zero; and approximately the smallest
// magnitude.
struct Seen {
  float watch;
  float low;
};

template <WeightKind kKind, class Arrays>
struct Weights {
  static constexpr bool kQuads = Arrays::kQuads;
  typename Arrays::Param::Share param;
  typename Arrays::Residual::Share residual;

  // `kBf16`: sixteen-bit values are bf16.
  template <bool kBf16>
  __device__ void unpack(const TensorEntry& t, float* out) const {
    if constexpr (kKind == WeightKind::f32) {
      as_floats(param, out);
    } else if constexpr (kKind == WeightKind::half) {
      unpack_halves<kBf16>(words_of(param), t.param_dtype, out);
    } else if constexpr (kKind == WeightKind::stochastic) {
      unpack_bf16x8(words_of(param), out);
    } else {
      const uint4 from = words_of(param);
      const std::uint32_t w[4] = {from.x, from.y, from.z, from.w};
      std::uint32_t r[4];
      residual_words(r);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const auto weight = scalar::I32::of((w[i / 2] >> (16 * (i % 2))) & 0xFFFFU);
        if constexpr (kKind == WeightKind::residual16) {
          out[i] =
              formula::join16(weight, scalar::I32(static_cast<std::int16_t>(r[i / 2] >> (16 * (i % 2))))).v;
        } else {
          out[i] = formula::join8(weight, scalar::I32(static_cast<std::int8_t>(r[i / 4] >> (8 * (i % 4))))).v;
        }
      }
    }
  }

  // Replaces the old weights by the new ones, from `at` on.
  template <bool kBf16>
  __device__ Seen pack(const TensorEntry& t, std::uint64_t round_base, std::uint32_t at, const float* x) {
    if constexpr (kKind == WeightKind::f32) {
      param = as_eight<kQuads>(x);
    } else if constexpr (kKind == WeightKind::half) {
      if (kBf16 || is_bf16(t.param_dtype)) {
        const uint4 words = pack_bf16x8(x);
        param = eight_of<kQuads>(words);
        return {watch_bf16x8(words), low_bf16x8(words)};
      }
      param = eight_of<kQuads>(
          make_uint4(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]), pack_f16(x[6], x[7])));
    } else {
      std::uint32_t w[4] = {};
      std::uint32_t r[4] = {};
      [[maybe_unused]] formula::RoundKey key{};
      if constexpr (kKind == WeightKind::stochastic) key = formula::round_key(round_base, t.id, 0);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const scalar::F32 value(x[i]);
        if constexpr (kKind == WeightKind::stochastic) {
          const auto random = formula::random16(key, index_of<kQuads>(t, at),
                                                scalar::I32(kQuads && i >= 4 ? kQuadApart + i - 4 : i));
          w[i / 2] |= formula::float_to_bf16_stochastic(value, random).u() << (16 * (i % 2));
        } else if constexpr (kKind == WeightKind::residual16) {
          const auto split = formula::split16(value);
          w[i / 2] |= (split.weight.u() & 0xFFFFU) << (16 * (i % 2));
          r[i / 2] |= (split.residual.u() & 0xFFFFU) << (16 * (i % 2));
        } else {
          const auto split = formula::split8(value);
          w[i / 2] |= (split.weight.u() & 0xFFFFU) << (16 * (i % 2));
          r[i / 4] |= (split.residual.u() & 0xFFU) << (8 * (i % 4));
        }
      }
      param = eight_of<kQuads>(make_uint4(w[0], w[1], w[2], w[3]));
      if constexpr (kKind == WeightKind::residual16)
        residual = eight_of<kQuads>(make_uint4(r[0], r[1], r[2], r[3]));
      if constexpr (kKind == WeightKind::residual8) {
        if constexpr (kQuads) {
          residual.piece[0] = r[0];
          residual.piece[1] = r[1];
        } else {
          residual.piece[0] = make_uint2(r[0], r[1]);
        }
      }
    }
    return {watch8(x), low8(x)};
  }

 private:
  __device__ void residual_words(std::uint32_t* r) const {
    if constexpr (kKind == WeightKind::residual16) {
      const uint4 words = words_of(residual);
      r[0] = words.x, r[1] = words.y, r[2] = words.z, r[3] = words.w;
    } else if constexpr (kQuads) {
      r[0] = residual.piece[0], r[1] = residual.piece[1];
    } else {
      r[0] = residual.piece[0].x, r[1] = residual.piece[0].y;
    }
  }
};

}  // namespace octavo::cuda
