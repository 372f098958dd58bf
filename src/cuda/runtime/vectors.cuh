// Converts sixteen bytes of a tensor to floats, and back.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/runtime/element_io.cuh"

#include <type_traits>

namespace octavo::cuda {

// The number of elements in sixteen bytes.
template <DType kType>
inline constexpr int kVector = kType == DType::f32 ? 4 : 8;

template <DType kType>
__device__ inline void unpack(const uint4& words, float* out) {
  if constexpr (kType == DType::f32) {
    as_floats(words, out);
  } else {
    unpack_halves<kType == DType::bf16>(words, static_cast<std::uint8_t>(kType), out);
  }
}

// Loads with NaN in its canonical form.
template <DType kType>
__device__ inline std::uint32_t narrow(float x) {
  const scalar::F32 value(x);
  if constexpr (kType == DType::f32) return bits(formula::canonical(value)).u();
  if constexpr (kType == DType::bf16) return formula::float_to_bf16(value).u();
  return formula::float_to_fp16(value).u();
}

template <DType kType>
__device__ inline uint4 pack_exact(const float* x) {
  constexpr int kOf = kVector<kType> / 4;  // elements per word
  std::uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < kVector<kType>; ++i) words[i / kOf] |= narrow<kType>(x[i]) << (i % kOf * 16);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Stores with the hardware's conversions, which differ only in the form of NaN.
template <DType kType>
__device__ inline uint4 pack_fast(const float* x) {
  if constexpr (kType == DType::f32) return as_words(x);
  if constexpr (kType == DType::bf16) return pack_bf16x8(x);
  return make_uint4(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]), pack_f16(x[6], x[7]));
}

// The sum is NaN if one of the elements is.
template <DType kType>
__device__ inline uint4 pack(const float* x) {
  float sum = x[0];
#pragma unroll
  for (int i = 1; i < kVector<kType>; ++i) sum += x[i];
  return sum != sum ? pack_exact<kType>(x) : pack_fast<kType>(x);
}

// One element, if a vector does not fit.
template <DType kType>
__device__ inline void store_one(void* base, std::int64_t at, float x) {
  if constexpr (kType == DType::f32)
    static_cast<std::uint32_t*>(base)[at] = narrow<kType>(x);
  else
    static_cast<std::uint16_t*>(base)[at] = static_cast<std::uint16_t>(narrow<kType>(x));
}
template <DType kType>
__device__ inline float load_one(const void* base, std::int64_t at) {
  return load_one(base, static_cast<std::uint8_t>(kType), at);
}

// Calls f(a type's number as a constant), which launches a kernel.
template <class Fn>
cudaError_t by_type(DType dtype, Fn&& f) {
  if (dtype == DType::f32) f(std::integral_constant<DType, DType::f32>{});
  if (dtype == DType::bf16) f(std::integral_constant<DType, DType::bf16>{});
  if (dtype == DType::f16) f(std::integral_constant<DType, DType::f16>{});
  return cudaGetLastError();
}

}  // namespace octavo::cuda
