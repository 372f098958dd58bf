// The numbers that benchmarks run on: bell-shaped, reproducible anywhere, made by integer operations alone.
//
// Element i of a stream is s * 2^(shift-24), where s is the sum of the four 16-bit quarters of
// splitmix64(stream, i), less 131070: |s| < 2^17.0001, standard deviation 37837. fp32 holds it exactly;
// bf16 and fp16 keep its leading 8 and 11 bits, truncated. With shift 0 the deviation is 0.0023, as of
// gradients; with shift 3 it is 0.018, as of weights.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace octavo::cli {

inline constexpr int kGradShift = 0;
inline constexpr int kWeightShift = 3;

// The `index`-th output of the splitmix64 generator that starts at `stream`.
std::uint64_t splitmix64(std::uint64_t stream, std::uint64_t index);

// The stream of one tensor: kind 0 for weights, the step (from 1) for gradients.
std::uint64_t stream_of(std::uint64_t tensor, std::uint64_t kind);

// Writes elements [begin, end) of `stream` at their places in `data`, which holds the whole tensor.
void fill(void* data, DType dtype, std::uint64_t stream, int shift, std::int64_t begin, std::int64_t end);

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ULL;

// FNV-1a, 64 bits: continues `hash` over `bytes`.
std::uint64_t fnv1a(std::uint64_t hash, std::span<const std::byte> bytes);

}  // namespace octavo::cli
