// Reproducible benchmark data and the hash of results; see bench_data.h.
// SPDX-License-Identifier: MIT
#include "bench_data.h"

#include <bit>
#include <cstdlib>

namespace octavo::cli {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
constexpr float kUnit = 1.0F / 16777216.0F;  // 2^-24: also the smallest fp16 denormal

std::int32_t sample(std::uint64_t stream, std::int64_t index, int shift) {
  const std::uint64_t z = splitmix64(stream, static_cast<std::uint64_t>(index));
  const std::uint64_t sum = (z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff) + (z >> 48);
  return (static_cast<std::int32_t>(sum) - 131070) * (1 << shift);
}

float to_f32(std::int32_t units) { return static_cast<float>(units) * kUnit; }

std::uint16_t to_bf16(std::int32_t units) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(to_f32(units)) >> 16);
}

std::uint16_t to_f16(std::int32_t units) {
  const std::uint32_t sign = units < 0 ? 0x8000U : 0U;
  auto magnitude = static_cast<std::uint32_t>(std::abs(units));
  const int width = static_cast<int>(std::bit_width(magnitude));
  if (width > 11) {  // keep 11 bits, the leading one implied by the exponent
    const int drop = width - 11;
    magnitude = (static_cast<std::uint32_t>(drop) << 10) + (magnitude >> drop);
  }
  return static_cast<std::uint16_t>(sign | magnitude);
}

template <class T>
void fill_as(void* data, T (*convert)(std::int32_t), std::uint64_t stream, int shift, std::int64_t begin,
             std::int64_t end) {
  auto* out = static_cast<T*>(data);
  for (std::int64_t i = begin; i < end; ++i) out[i] = convert(sample(stream, i, shift));
}

}  // namespace

std::uint64_t splitmix64(std::uint64_t stream, std::uint64_t index) {
  std::uint64_t z = stream + (index + 1) * kGolden;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

std::uint64_t stream_of(std::uint64_t tensor, std::uint64_t kind) {
  return splitmix64(splitmix64(0, tensor), kind);
}

void fill(void* data, DType dtype, std::uint64_t stream, int shift, std::int64_t begin, std::int64_t end) {
  switch (dtype) {
    case DType::f32:
      return fill_as<float>(data, to_f32, stream, shift, begin, end);
    case DType::bf16:
      return fill_as<std::uint16_t>(data, to_bf16, stream, shift, begin, end);
    case DType::f16:
      return fill_as<std::uint16_t>(data, to_f16, stream, shift, begin, end);
  }
}

std::uint64_t fnv1a(std::uint64_t hash, std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace octavo::cli
