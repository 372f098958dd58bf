// Converts bf16 weights with residuals to fp32 and back, and compares the bits with docs/formats.md and with
// those of a step.
// SPDX-License-Identifier: MIT
#include "tests/reference/elements.h"

#include <octavo/codec.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace test {
namespace {

using octavo::WeightStore;
using reference::bits_of;
using reference::from_bits;

struct Halves {
  std::vector<std::uint16_t> weights;
  std::vector<std::byte> residual;
};

Halves split(WeightStore store, const std::vector<float>& values) {
  Halves out{std::vector<std::uint16_t>(values.size()),
             std::vector<std::byte>(static_cast<std::size_t>(
                 octavo::residual_bytes(store, static_cast<std::int64_t>(values.size()))))};
  EXPECT_TRUE(octavo::split_weights(store, values, out.weights, out.residual).ok());
  return out;
}

std::vector<float> join(WeightStore store, const Halves& halves) {
  std::vector<float> out(halves.weights.size());
  EXPECT_TRUE(octavo::join_weights(store, halves.weights, halves.residual, out).ok());
  return out;
}

// Returns all exponents, both signs, and low bits around every rounding boundary.
std::vector<float> awkward() {
  std::vector<float> out;
  for (std::uint32_t high = 0; high < 0x10000; high += 0x3F) {
    for (const std::uint32_t low :
         {0U, 1U, 0x7FU, 0x80U, 0x81U, 0x7F7FU, 0x7F80U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      out.push_back(from_bits(high << 16 | low));
  }
  for (const float special :
       {0.0F, -0.0F, 1.24F, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()})
    out.push_back(special);
  return out;
}

// Returns the value that a store reads back, by docs/formats.md.
std::uint32_t read_back(WeightStore store, float value) {
  const std::uint32_t b = std::isnan(value) ? 0x7FC00000U : bits_of(value);
  switch (store) {
    case WeightStore::residual16:
      return b;
    case WeightStore::residual8:
      return (b + 0x80U) & ~0xFFU;
    default:
      return std::isnan(value) ? 0x7FC00000U : (b + 0x7FFFU + (b >> 16 & 1U)) >> 16 << 16;
  }
}

TEST(Weights, ReadBackAsTheFormatSays) {
  const std::vector<float> values = awkward();
  for (const WeightStore store : octavo::all_weight_stores()) {
    const std::vector<float> read = join(store, split(store, values));
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(bits_of(read[i]), read_back(store, values[i]))
          << octavo::name(store) << " " << bits_of(values[i]);
  }
}

TEST(Weights, TheExamplesOfTheDocument) {
  const Halves wide = split(WeightStore::residual16, {1.24F}),
               narrow = split(WeightStore::residual8, {1.24F});
  std::int16_t residual16 = 0;
  std::memcpy(&residual16, wide.residual.data(), 2);
  EXPECT_EQ(wide.weights[0], 0x3F9F);
  EXPECT_EQ(residual16, -18350);
  EXPECT_EQ(narrow.weights[0], 0x3F9F);
  EXPECT_EQ(static_cast<std::int8_t>(narrow.residual[0]), -72);
  EXPECT_EQ(split(WeightStore::stochastic, {1.24F}).weights[0], 0x3F9F);
  // A zero with a negative residual is zero.
  EXPECT_EQ(bits_of(join(WeightStore::residual8, {{0x8000}, {std::byte{0xFF}}})[0]), 0x80000000U);
}

TEST(Weights, WrongSizesAreErrors) {
  std::vector<float> values(4);
  std::vector<std::uint16_t> weights(4);
  std::vector<std::byte> residual(4);
  EXPECT_TRUE(octavo::split_weights(WeightStore::residual8, values, weights, residual).ok());
  EXPECT_EQ(octavo::split_weights(WeightStore::residual16, values, weights, residual).message(),
            "[split_weights] residual: got 4 bytes, expected 8");
  EXPECT_EQ(octavo::join_weights(WeightStore::nearest, weights, residual, values).message(),
            "[join_weights] residual: got 4 bytes, expected 0");
  weights.resize(3);
  EXPECT_EQ(octavo::join_weights(WeightStore::residual8, weights, residual, values).message(),
            "[join_weights] weights: got 3 elements, expected the number of values, 4");
  EXPECT_FALSE(octavo::split_weights(static_cast<WeightStore>(9), values, weights, residual).ok());
}

}  // namespace
}  // namespace test
