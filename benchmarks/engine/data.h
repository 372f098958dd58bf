// The benchmarks' input data: bell-shaped, identical on every machine, made with integer operations only.
//
// Element i of a stream is s * 2^(shift-24), where s is the sum of the four 16-bit quarters of
// splitmix64(stream, i), minus 131070: |s| < 2^17.0001, standard deviation 37837. fp32 holds it exactly; bf16
// and fp16 keep its leading 8 and 11 bits, truncated. With shift 0 the standard deviation is 0.0023, typical
// of gradients; with shift 3 it is 0.018, typical of weights.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

// The GPU runs these functions, too, and produces the same numbers.
#if defined(__CUDACC__)
#define OCTAVO_CLI_HD __host__ __device__
#else
#define OCTAVO_CLI_HD
#endif

namespace octavo::cli {

inline constexpr int kGradShift = 0;
inline constexpr int kWeightShift = 3;

// The `index`-th output of the splitmix64 generator that starts at `stream`.
OCTAVO_CLI_HD inline std::uint64_t splitmix64(std::uint64_t stream, std::uint64_t index) {
  std::uint64_t z = stream + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Returns element `index` of a stream, in units of 2^-24.
OCTAVO_CLI_HD inline std::int32_t sample(std::uint64_t stream, std::int64_t index, int shift) {
  const std::uint64_t z = splitmix64(stream, static_cast<std::uint64_t>(index));
  const std::uint64_t sum = (z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff) + (z >> 48);
  return (static_cast<std::int32_t>(sum) - 131070) * (1 << shift);
}

// Element types: each struct converts units of 2^-24 to its type.
struct AsF32 {
  using Type = float;
  OCTAVO_CLI_HD static float of(std::int32_t units) { return static_cast<float>(units) * 0x1p-24F; }
};
struct AsBf16 {
  using Type = std::uint16_t;
  OCTAVO_CLI_HD static std::uint16_t of(std::int32_t units) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(AsF32::of(units)) >> 16);
  }
};
struct AsF16 {  // fp16's smallest denormal is one unit
  using Type = std::uint16_t;
  OCTAVO_CLI_HD static std::uint16_t of(std::int32_t units) {
    const std::uint32_t sign = units < 0 ? 0x8000U : 0U;
    auto magnitude = static_cast<std::uint32_t>(units < 0 ? -units : units);
    // The number of bits of the magnitude, from the exponent of its (exact) float; below 0 for 0.
    const int width =
        static_cast<int>(std::bit_cast<std::uint32_t>(static_cast<float>(magnitude)) >> 23) - 126;
    if (width > 11) {  // keep 11 bits, the leading one implied by the exponent
      const int drop = width - 11;
      magnitude = (static_cast<std::uint32_t>(drop) << 10) + (magnitude >> drop);
    }
    return static_cast<std::uint16_t>(sign | magnitude);
  }
};

// Selects the rows of a tensor that hold data; the others hold zeros. Without `touched`, all rows hold data.
struct RowMask {
  std::int64_t row = 0;                   // elements per row
  const std::uint8_t* touched = nullptr;  // one byte per row, in the data's memory space

  [[nodiscard]] OCTAVO_CLI_HD bool holds(std::int64_t index) const {
    return touched == nullptr || touched[index / row] != 0;
  }
};

// Returns the stream of one tensor: kind 0 for weights, the step (from 1) for gradients.
std::uint64_t stream_of(std::uint64_t tensor, std::uint64_t kind);

// Writes elements [begin, end) of `stream` to the same positions of `data`, which holds the entire tensor.
void fill(void* data, DType dtype, std::uint64_t stream, int shift, const RowMask& mask, std::int64_t begin,
          std::int64_t end);

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ULL;

// Continues a 64-bit FNV-1a `hash` over `bytes`.
std::uint64_t fnv1a(std::uint64_t hash, std::span<const std::byte> bytes);

// Returns the 16 hex digits of a hash.
std::string hex16(std::uint64_t hash);

}  // namespace octavo::cli
