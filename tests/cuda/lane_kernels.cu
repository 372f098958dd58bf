// See lane_kernels.h.
// SPDX-License-Identifier: MIT
#include "tests/cuda/lane_kernels.h"

#include "formula/adamw.h"
#include "lane/cuda.cuh"

#include <cmath>

namespace test {
namespace {

constexpr int kBlocks = 1056;
constexpr int kThreadsOfBlock = 256;

__device__ void compare(float a, float b, float got, float expected, LaneMismatch* out) {
  if (__float_as_uint(got) == __float_as_uint(expected)) return;
  if (atomicAdd(&out->count, 1ULL) != 0) return;
  out->a = __float_as_uint(a);
  out->b = __float_as_uint(b);
  out->got = __float_as_uint(got);
  out->expected = __float_as_uint(expected);
}

enum class Check { root, of, by };

template <Check kCheck>
__global__ void every_kernel(std::uint32_t first, long long count, float other, LaneMismatch* out) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const float x = __uint_as_float(first + static_cast<std::uint32_t>(i));
    const octavo::cuda::F32 lane(x);
    const octavo::cuda::F32 constant(other);
    if constexpr (kCheck == Check::root) {
      if (x == 0.0F) continue;  // whose root is close to zero
      compare(x, 0.0F, octavo::cuda::F32(octavo::cuda::sqrt(lane)).v, __fsqrt_rn(x), out);
    } else if constexpr (kCheck == Check::of) {
      compare(other, x, (constant / lane).v, __fdiv_rn(other, x), out);
    } else {
      compare(x, other, (lane / constant).v, __fdiv_rn(x, other), out);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) out->checked = static_cast<unsigned long long>(count);
}

__device__ std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Returns a float of 2^low up to 2^high; one in four is next to a power of two.
__device__ float random_float(std::uint64_t bits, int low, int high) {
  const auto exponent = static_cast<std::uint32_t>(127 + low) +
                        static_cast<std::uint32_t>((bits >> 40) % static_cast<std::uint64_t>(high - low));
  auto mantissa = static_cast<std::uint32_t>(bits) & 0x7FFFFFU;
  if ((bits >> 30 & 7U) == 0) mantissa &= 15U;
  if ((bits >> 30 & 7U) == 1) mantissa |= 0x7FFFF0U;
  return __uint_as_float(exponent << 23 | mantissa);
}

__global__ void random_kernel(long long pairs, LaneMismatch* out) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs; i += step) {
    const std::uint64_t one = mix(static_cast<std::uint64_t>(2 * i));
    float a = random_float(one, -102, 60);
    if ((one >> 63) != 0) a = -a;
    const float b = random_float(mix(static_cast<std::uint64_t>(2 * i + 1)), -56, 43);
    if (fabsf(a) < 0x1p-125F * b) continue;  // a quotient with fewer bits
    compare(a, b, (octavo::cuda::F32(a) / octavo::cuda::F32(b)).v, __fdiv_rn(a, b), out);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) out->checked = static_cast<unsigned long long>(pairs);
}

// Returns a value that moments and weights can have: zeros, denormals, small and usual numbers.
__device__ float any_float(std::uint64_t bits) {
  const float sign = (bits >> 62 & 1U) != 0 ? -1.0F : 1.0F;
  switch (bits >> 59 & 7U) {
    case 0:
      return sign * 0.0F;
    case 1:
      return sign * __uint_as_float(static_cast<std::uint32_t>(bits) & 0x7FFFFFU);
    case 2:
      return sign * random_float(bits, -126, -60);
    case 3:
    case 4:
      return sign * random_float(bits, -60, -10);
    default:
      return sign * random_float(bits, -10, 10);
  }
}

// Runs steps of AdamW on both lanes, with constants that differ by block: they are equal wherever the rule of
// lane/exact.h says so. `checked` counts those, which must be most of them.
__global__ void update_kernel(long long updates, LaneMismatch* out) {
  using octavo::formula::Adam;
  Adam::Consts c{};
  const std::uint64_t seed = mix(blockIdx.x);
  octavo::HyperParams h;
  h.lr = (seed & 3U) == 0 ? 1.0 : (seed & 3U) == 1 ? 1e-6 : 1e-2;
  h.eps = (seed >> 2 & 3U) == 0 ? 1e-15 : (seed >> 2 & 3U) == 1 ? 1e-3 : 1e-8;
  h.beta1 = (seed >> 4 & 1U) != 0 ? 0.9 : 0.0;
  Adam::derive(h, 1 + static_cast<std::int64_t>(seed >> 5 & 63U), c);
  c.keep = (seed >> 20 & 1U) != 0 ? 1.0F : 0.999F;
  const octavo::Quotients quotients = Adam::quotients(c);
  if (!octavo::in_range(quotients)) return;
  const float least = octavo::least_result(quotients);
  unsigned long long taken = 0;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < updates; i += step) {
    const auto random = [&](int k) { return mix(static_cast<std::uint64_t>(4 * i + k) ^ seed << 1); };
    const float g = any_float(random(0));
    const float p = any_float(random(1));
    const float m = any_float(random(2));
    const float v = fabsf(any_float(random(3)));
    octavo::cuda::F32 fast[2] = {m, v};
    octavo::scalar::F32 exact[2] = {m, v};
    const float got = Adam::update(c, octavo::cuda::F32(g), octavo::cuda::F32(p), fast).v;
    const float expected = Adam::update(c, octavo::scalar::F32(g), octavo::scalar::F32(p), exact).v;
    compare(m, v, fast[0].v, exact[0].v, out);
    compare(m, v, fast[1].v, exact[1].v, out);
    if (__float_as_uint(fast[0].v) != 0 && !(fabsf(got) >= least)) continue;
    ++taken;
    compare(fast[0].v, fast[1].v, got, expected, out);
  }
  atomicAdd(&out->checked, taken);
}

template <class Fn>
cudaError_t on_device(LaneMismatch* out, Fn&& launch) {
  *out = {};
  LaneMismatch* device = nullptr;
  if (const cudaError_t error = cudaMalloc(&device, sizeof *out); error != cudaSuccess) return error;
  cudaError_t error = cudaMemcpy(device, out, sizeof *out, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) {
    launch(device);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaMemcpy(out, device, sizeof *out, cudaMemcpyDeviceToHost);
  (void)cudaFree(device);
  return error;
}

// One denominator per thread, and all numerators in sequence.
__global__ void all_kernel(std::uint32_t first, std::uint32_t count, LaneMismatch* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  constexpr std::uint32_t kOne = 0x3F800000U;
  constexpr std::uint32_t kMantissas = 1U << 23;
  const float b = __uint_as_float(kOne | (first + i));
  unsigned long long wrong = 0;
#pragma unroll 4
  for (std::uint32_t m = 0; m < kMantissas; ++m) {
    const float a = __uint_as_float(kOne | m);
    const float got = (octavo::cuda::F32(a) / octavo::cuda::F32(b)).v;
    const float expected = __fdiv_rn(a, b);
    if (got == expected) continue;
    ++wrong;
    out->a = __float_as_uint(a);
    out->b = __float_as_uint(b);
    out->got = __float_as_uint(got);
    out->expected = __float_as_uint(expected);
  }
  atomicAdd(&out->checked, static_cast<unsigned long long>(kMantissas));
  if (wrong != 0) atomicAdd(&out->count, wrong);
}

template <Check kCheck>
cudaError_t every(float other, int first, int end, LaneMismatch* out) {
  return on_device(out, [&](LaneMismatch* device) {
    every_kernel<kCheck><<<kBlocks, kThreadsOfBlock>>>(static_cast<std::uint32_t>(127 + first) << 23,
                                                       static_cast<long long>(end - first) << 23, other,
                                                       device);
  });
}

int exponent_of(float x) { return std::ilogb(x); }

}  // namespace

cudaError_t check_roots(int first_exponent, int end_exponent, LaneMismatch* out) {
  return every<Check::root>(0.0F, first_exponent, end_exponent, out);
}
cudaError_t check_quotients_of(float numerator, int first_exponent, int end_exponent, LaneMismatch* out) {
  return every<Check::of>(numerator, first_exponent, end_exponent, out);
}
cudaError_t check_quotients_by(float denominator, int first_exponent, int end_exponent, LaneMismatch* out) {
  return every<Check::by>(denominator, first_exponent, end_exponent, out);
}
cudaError_t check_random_quotients(long long pairs, LaneMismatch* out) {
  return on_device(out,
                   [&](LaneMismatch* device) { random_kernel<<<kBlocks, kThreadsOfBlock>>>(pairs, device); });
}

cudaError_t check_updates(long long updates, LaneMismatch* out) {
  return on_device(
      out, [&](LaneMismatch* device) { update_kernel<<<kBlocks, kThreadsOfBlock>>>(updates, device); });
}

cudaError_t check_all_quotients(std::uint32_t first, std::uint32_t count, LaneMismatch* out) {
  return on_device(
      out, [&](LaneMismatch* device) { all_kernel<<<(count + 255) / 256, 256>>>(first, count, device); });
}

LaneRange lane_range() { return {exponent_of(octavo::kLargeFirst), exponent_of(octavo::kLargeSecond)}; }

}  // namespace test
