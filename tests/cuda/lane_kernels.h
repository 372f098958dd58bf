// Compares the exact lane of a CUDA thread (src/lane/cuda.cuh) with the hardware's own rounded operations,
// element by element on the device. Each call counts the results that differ and stores one of them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace test {

struct LaneMismatch {
  unsigned long long checked, count;
  std::uint32_t a, b, got, expected;  // the bits of one of them
};

// Roots of every float of 2^first_exponent up to 2^end_exponent; from -127 on, denormals too.
cudaError_t check_roots(int first_exponent, int end_exponent, LaneMismatch* out);
// numerator / x for every such float.
cudaError_t check_quotients_of(float numerator, int first_exponent, int end_exponent, LaneMismatch* out);
// x / denominator for every such float.
cudaError_t check_quotients_by(float denominator, int first_exponent, int end_exponent, LaneMismatch* out);
// Random pairs: |a| in [2^-102, 2^60), b in [2^-56, 2^43), with mantissas random or next to a power of two.
cudaError_t check_random_quotients(long long pairs, LaneMismatch* out);
// Steps of AdamW on random weights, gradients and moments of all magnitudes. `checked` counts those that the
// fast lane may process.
cudaError_t check_updates(long long updates, LaneMismatch* out);

// Every mantissa divided by the `count` mantissas from `first` on, both in [1, 2).
cudaError_t check_all_quotients(std::uint32_t first, std::uint32_t count, LaneMismatch* out);

// The limits that the header documents, as exponents.
struct LaneRange {
  int first_high, second_high;
};
LaneRange lane_range();

}  // namespace test
