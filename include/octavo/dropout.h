// Dropout without a stored mask. Only (seed, step, sample, layer, element) decides if an element is dropped,
// with equal bits on every device. A sample has the same mask at any position in a batch and for any split of
// the batch. The backward pass is the same call on the gradient.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstdint>

namespace octavo {

// The elements are [outer, batch, inner], contiguous. Element (o, b, i) has number n = o * inner + i in the
// sample samples[b]. If `row` is not 0, a sample consists of rows of `row` elements whose numbers start
// `pitch` apart: n becomes n / row * pitch + n % row, so that a matrix keeps its mask when it is padded to
// other sizes. The caller owns all memory, which is on `device`.
struct DropoutArgs {
  Device device;
  DType dtype = DType::f32;
  const void* from = nullptr;  // aligned to its element
  void* to = nullptr;          // `from` itself, or memory that does not overlap it
  std::int64_t outer = 1, batch = 0, inner = 0;
  const std::int64_t* samples = nullptr;  // `batch` numbers of any value
  double probability = 0.0;               // that an element is dropped: in [0, 1), rounded to k * 2^-16
  std::uint64_t seed = 0, step = 0;
  std::uint32_t layer = 0;  // distinguishes the dropouts of a model
  void* stream = nullptr;   // cuda: the cudaStream_t to work on
  int threads = 0;          // cpu: 0 means the pool's size
  // 0: no rows. Otherwise `row` divides `inner`, `pitch` is at least `row`, and all numbers are below 2^60.
  std::int64_t row = 0, pitch = 0;
};

// A dropped element becomes zero. Any other element x becomes x times the fp32 number nearest to 1 / (1 - p),
// where p is the rounded probability. On a GPU the work is queued on `stream`; on the CPU it is complete when
// the function returns.
OCTAVO_API Status dropout(const DropoutArgs& args);

}  // namespace octavo
