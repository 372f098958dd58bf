// The masks of train/nn/dropout.h inside other kernels, for eight neighbouring elements at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include "src/formula/dropout.h"

#include <cstdint>

namespace octavo_train::cuda {

namespace formula = octavo::formula;
namespace scalar = octavo::scalar;

// The dropout arguments of a kernel. A threshold of zero drops nothing.
struct Dropping {
  const std::int64_t* samples;
  std::uint64_t base;  // formula::dropout_base
  std::uint32_t layer;
  formula::Dropout how;
};

// The counters of a sample's elements. REQUIRES: the counters of all used elements have the same upper word,
// which is so if the sample has fewer than 2^33 elements.
class Counters {
 public:
  __device__ Counters(const Dropping& drop, formula::RoundKey key)
      : key_(key), second_(formula::high_word(key, 0)), how_(drop.how) {}
  __device__ Counters(const Dropping& drop, std::int64_t sample)
      : Counters(drop, formula::dropout_key(drop.base, sample < 0 ? 0 : drop.samples[sample], drop.layer)) {}

  // Returns the random bits of a counter: sixteen bits for each of two elements.
  [[nodiscard]] __device__ scalar::I32 bits(std::uint32_t counter) const {
    return formula::mix32(scalar::I32::of(counter), scalar::I32::of(key_.low), scalar::I32::of(second_));
  }
  [[nodiscard]] __device__ float drop(float x, scalar::I32 bits, bool high) const {
    return formula::drop(scalar::F32(x), formula::dropout_half(bits, high), scalar::I32(how_.threshold),
                         scalar::F32(how_.scale))
        .v;
  }
  // Applies the mask to the eight elements from `element` on, which is a multiple of eight.
  __device__ void drop8(std::uint64_t element, float* x) const {
    const formula::DropoutPlace place = formula::dropout_place(element);
    const auto counter = static_cast<std::uint32_t>(place.counter);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = drop(x[i], bits(counter + i), place.high);
  }

 private:
  formula::RoundKey key_;
  std::uint32_t second_;
  formula::Dropout how_;
};

}  // namespace octavo_train::cuda
