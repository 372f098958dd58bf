// Loads and stores of neighbouring elements of an activation, which are fp32 in registers; small functions
// that the kernels of train/nn share; and sums over a block in a fixed order.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/ceil_div.h"

#include <cuda_bf16.h>

#include <cstdint>

namespace octavo_train::cuda {

using Bf16 = __nv_bfloat16;

// kCount elements as they are in memory, loaded and stored by the widest accesses that their alignment
// allows.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Raw {
  T at[kCount];
};

template <class T, int kCount>
__device__ inline Raw<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Raw<T, kCount>*>(from);
}
template <int kCount>
__device__ inline void widen(const Raw<float, kCount>& raw, float* out) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] = raw.at[i];
}
template <int kCount>
__device__ inline void widen(const Raw<Bf16, kCount>& raw, float* out) {
  std::uint32_t words[kCount / 2];
  memcpy(words, &raw, sizeof(raw));
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
}
template <int kCount>
__device__ inline Raw<float, kCount> narrow(const float* x, const float*) {
  Raw<float, kCount> out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out.at[i] = x[i];
  return out;
}
template <int kCount>
__device__ inline Raw<Bf16, kCount> narrow(const float* x, const Bf16*) {
  std::uint32_t words[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
    memcpy(words + i, &both, 4);
  }
  Raw<Bf16, kCount> out;
  memcpy(&out, words, sizeof(out));
  return out;
}
// Stores x, and sets x to the values that a later load returns.
template <int kCount, class T>
__device__ inline void store(T* to, float* x) {
  const Raw<T, kCount> raw = narrow<kCount>(x, to);
  *reinterpret_cast<Raw<T, kCount>*>(to) = raw;
  widen(raw, x);
}

// Returns the sigmoid of x within a few units in the last place, for any x: 1 + e^-x is at least 1 and its
// reciprocal is never a denormal number that matters; if e^-x is infinite, the result is zero.
__device__ inline float sigmoid(float x) {
  float power, out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634F));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(1.0F + power));
  return out;
}
// Returns the derivative of x * sigmoid(x).
__device__ inline float silu_slope(float x) {
  const float s = sigmoid(x);
  return s * (1.0F + x * (1.0F - s));
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0U, x, o);
  return x;
}
__device__ inline double warp_sum(double x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0U, x, o);
  return x;
}

// Returns, in a block of 32 x 32 threads, the sum of each column (threadIdx.x) over threadIdx.y, to all
// threads of the column.
__device__ inline double column_total(double x) {
  __shared__ double cells[32][33];
  __syncthreads();  // an earlier call may still be reading
  cells[threadIdx.y][threadIdx.x] = x;
  __syncthreads();
  const double sum = warp_sum(cells[threadIdx.x][threadIdx.y]);
  __syncthreads();
  if (threadIdx.x == 0) cells[0][threadIdx.y] = sum;
  __syncthreads();
  return cells[0][threadIdx.x];
}

// Returns how many of a clip's frames are not padding.
__device__ inline int within(std::int64_t length, int frames) {
  return length < 0 ? 0 : length < frames ? static_cast<int>(length) : frames;
}

}  // namespace octavo_train::cuda
