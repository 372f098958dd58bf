// Tests dropout beyond the size of memory: elements whose counters cross 2^32, with every implementation
// against the scalar lane, one element at a time.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"

#include <octavo/backend.h>

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace octavo::cpu {
namespace {

TEST(DropoutKernel, CountersCrossTheirHighWord) {
  constexpr std::int64_t kCount = 2000;
  // The counters of elements from 2^33 on have a high word of 1.
  constexpr std::uint64_t kFirst = (std::uint64_t{1} << 33) - 1003;
  const formula::RoundKey key = formula::dropout_key(formula::dropout_base(1, 2), 3, 4);
  const formula::Dropout how = formula::make_dropout(0.5);
  const std::vector<float> ones(kCount, 1.0F);
  std::vector<float> expected(kCount);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const formula::DropoutPlace place = formula::dropout_place(kFirst + i);
    const auto high = formula::high_word(key, static_cast<std::uint32_t>(place.counter >> 32));
    const auto low = scalar::I32::of(static_cast<std::uint32_t>(place.counter));
    const auto bits = formula::mix32(low, scalar::I32::of(key.low), scalar::I32::of(high));
    const std::uint32_t half = place.high ? bits.u() >> 16 : bits.u() & 0xFFFFU;
    expected[i] = half < 0x8000U ? 0.0F : 2.0F;
  }
  const auto scratch = std::make_unique<Scratch>();
  for (const Implementation& each : implementations()) {
    if (!each.supported) continue;
    ASSERT_TRUE(force_implementation(each.name).ok());
    std::vector<float> got(kCount);
    kernels().value()->drop(
        {ones.data(), got.data(), DType::f32, 0, kCount, kFirst, key, how, scratch.get()});
    EXPECT_EQ(got, expected) << each.name;
  }
  ASSERT_TRUE(force_implementation("").ok());
}

}  // namespace
}  // namespace octavo::cpu
