// Loads and stores eight neighbouring elements of a tensor, and single ones if a vector does not fit.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/runtime/arch.h"
#include "formula/narrow.h"

#include <octavo/types.h>

namespace octavo::cuda {

__device__ inline unsigned warp_sum(unsigned x) {
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0U, x, o);
  return x;
}
__device__ inline unsigned warp_max(unsigned x) {
  for (int o = 16; o > 0; o /= 2) x = max(x, __shfl_xor_sync(~0U, x, o));
  return x;
}

// Loads two neighbouring pointers of a table at once.
template <class A, class B>
struct PointerPair {
  A* first;
  B* second;
};
template <class A, class B>
__device__ inline PointerPair<A, B> pointers_at(A* const* first, B* const* second) {
  const auto both = *reinterpret_cast<const ulonglong2*>(first);
  (void)second;  // the next one in the table
  return {reinterpret_cast<A*>(both.x), reinterpret_cast<B*>(both.y)};
}

// Data is used once per step, so it bypasses the caches.
template <class V>
__device__ inline V load(const void* base, std::int64_t bytes) {
  return __ldcs(reinterpret_cast<const V*>(static_cast<const char*>(base) + bytes));
}
template <class V>
__device__ inline void store(void* base, std::int64_t bytes, V value) {
  __stcs(reinterpret_cast<V*>(static_cast<char*>(base) + bytes), value);
}

__device__ inline bool is_f32(std::uint8_t dtype) { return dtype == static_cast<std::uint8_t>(DType::f32); }
__device__ inline bool is_bf16(std::uint8_t dtype) { return dtype == static_cast<std::uint8_t>(DType::bf16); }

__device__ inline void unpack_bf16(std::uint32_t word, float* out) {
  out[0] = __uint_as_float(word << 16);
  out[1] = __uint_as_float(word & 0xFFFF0000U);
}
__device__ inline void unpack_bf16x8(const uint4& raw, float* out) {
  unpack_bf16(raw.x, out);
  unpack_bf16(raw.y, out + 2);
  unpack_bf16(raw.z, out + 4);
  unpack_bf16(raw.w, out + 6);
}
__device__ inline void unpack_f16(std::uint32_t word, float* out) {
  asm("{.reg .f16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;}"
      : "=f"(out[0]), "=f"(out[1])
      : "r"(word));
}
__device__ inline void as_floats(const uint4& raw, float* out) {
  out[0] = __uint_as_float(raw.x);
  out[1] = __uint_as_float(raw.y);
  out[2] = __uint_as_float(raw.z);
  out[3] = __uint_as_float(raw.w);
}
__device__ inline uint4 as_words(const float* x) {
  return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                    __float_as_uint(x[3]));
}
template <bool kBf16 = false>
__device__ inline void unpack_halves(const uint4& words, std::uint8_t dtype, float* out) {
  if (kBf16 || is_bf16(dtype)) {
    unpack_bf16x8(words, out);
  } else {
    unpack_f16(words.x, out);
    unpack_f16(words.y, out + 2);
    unpack_f16(words.z, out + 4);
    unpack_f16(words.w, out + 6);
  }
}
// Hardware conversions round like formula/narrow.h; only their NaN differs, and NaNs use another path.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  if constexpr (has_bf16(kArch)) {
    std::uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
  } else {
    return formula::float_to_bf16(scalar::F32(low)).u() | formula::float_to_bf16(scalar::F32(high)).u() << 16;
  }
}
__device__ inline std::uint32_t pack_f16(float low, float high) {
  std::uint32_t out;
  asm("{.reg .f16 lo, hi; cvt.rn.f16.f32 lo, %1; cvt.rn.f16.f32 hi, %2; mov.b32 %0, {lo, hi};}"
      : "=r"(out)
      : "f"(low), "f"(high));
  return out;
}
__device__ inline uint4 pack_bf16x8(const float* x) {
  return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                    pack_bf16(x[6], x[7]));
}

// Returns NaN if a weight is NaN or infinite, otherwise zero.
__device__ inline float watch8(const float* x) {
  float watch = 0.0F;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) watch = __fmaf_rn(x[i], 0.0F, watch);
  return watch;
}
__device__ inline float watch_bf16x8(const uint4& words) {
  if constexpr (has_bf16(kArch)) {
    std::uint32_t watch = 0;
    const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(watch) : "r"(w[i]), "r"(0));
    float both[2];
    unpack_bf16(watch, both);
    return both[0] + both[1];
  } else {
    float x[kChunk];
    unpack_bf16x8(words, x);
    return watch8(x);
  }
}

// Returns the smallest magnitude.
__device__ inline float low8(const float* x) {
  float low = fabsf(x[0]);
#pragma unroll
  for (int i = 1; i < kChunk; ++i) low = fminf(low, fabsf(x[i]));
  return low;
}
__device__ inline float low_bf16x8(const uint4& words) {
  if constexpr (has_bf16_minimum(kArch)) {
    std::uint32_t low;
    asm("{.reg .b32 a, b; min.xorsign.abs.bf16x2 a, %1, %2; min.xorsign.abs.bf16x2 b, %3, %4; "
        "min.xorsign.abs.bf16x2 %0, a, b;}"
        : "=r"(low)
        : "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w));
    float both[2];
    unpack_bf16(low, both);
    return fminf(fabsf(both[0]), fabsf(both[1]));
  } else {
    float x[kChunk];
    unpack_bf16x8(words, x);
    return low8(x);
  }
}

// Loads one element at a time: tails, unaligned tensors, and elements that the vector path cannot handle.
__device__ inline float load_one(const void* base, std::uint8_t dtype, std::int64_t at) {
  if (is_f32(dtype)) return static_cast<const float*>(base)[at];
  const scalar::I32 half(static_cast<const std::uint16_t*>(base)[at]);
  return is_bf16(dtype) ? formula::bf16_to_float(half).v : formula::fp16_to_float(half).v;
}

}  // namespace octavo::cuda
