// Dropout without a mask that is kept: whether an element is dropped depends only on (seed, step, sample,
// layer, element), the same bits on every device. A sample has the same mask wherever it lies in a batch,
// however the batch is split and on whatever device; the backward pass is the same call on the gradient.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstdint>

namespace octavo {

// The elements are [outer, batch, inner], contiguous. Element (o, b, i) is number n = o * inner + i of the
// sample samples[b]. Where `row` is given, a sample's elements are rows of that many, and the first of each
// row is `pitch` behind that of the one before: n becomes n / row * pitch + n % row. A matrix that is padded
// to other sizes then keeps its mask. All memory is the caller's, on the device.
struct DropoutArgs {
  Device device;
  DType dtype = DType::f32;
  const void* from = nullptr;  // aligned to its element
  void* to = nullptr;          // `from` itself, or memory apart from it
  std::int64_t outer = 1, batch = 0, inner = 0;
  const std::int64_t* samples = nullptr;  // `batch` numbers, of any value
  double probability = 0.0;               // of dropping: at least 0, below 1; rounded to a multiple of 2^-16
  std::uint64_t seed = 0, step = 0;
  std::uint32_t layer = 0;  // tells the dropouts of a model apart
  void* stream = nullptr;   // cuda: the cudaStream_t to work on
  int threads = 0;          // cpu: 0 means the pool's size
  // 0: none. Else `row` divides `inner`, `pitch` is at least `row`, and the numbers are below 2^60.
  std::int64_t row = 0, pitch = 0;
};

// A dropped element is zero, a kept one x / (1 - p) for the rounded probability p: x times the fp32 number
// nearest to 1 / (1 - p), rounded to nearest. On a GPU the work is queued, on the CPU it is done on return.
OCTAVO_API Status dropout(const DropoutArgs& args);

}  // namespace octavo
