// Tests dropout through the public API: the bits that docs/formats.md defines with every implementation, the
// requested rate, and masks that depend on a sample and not on its index in a batch.
// SPDX-License-Identifier: MIT
#include "tests/reference/elements.h"
#include "tests/reference/random.h"
#include "tests/support/buffers.h"
#include "tests/support/random.h"

#include <octavo/backend.h>
#include <octavo/dropout.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace test {
namespace {

using octavo::DropoutArgs;
using octavo::DType;

constexpr std::int64_t kSamples[] = {7, -1, 0, std::int64_t{1} << 40, 12345};

struct Shape {
  std::int64_t outer, batch, inner;
  [[nodiscard]] std::int64_t numel() const { return outer * batch * inner; }
};
DropoutArgs args_of(DType dtype, const Shape& shape, const Buffer& from, Buffer& to) {
  DropoutArgs args;
  args.dtype = dtype;
  args.from = from.data();
  args.to = to.data();
  args.outer = shape.outer;
  args.batch = shape.batch;
  args.inner = shape.inner;
  args.samples = kSamples;
  args.probability = 0.1;
  args.seed = 3;
  args.step = 5;
  args.layer = 2;
  return args;
}

// Returns values of all magnitudes, including NaN, infinities and zeros of both signs.
Buffer input(DType dtype, std::int64_t numel, std::int64_t phase) {
  Buffer buffer(numel * octavo::dtype_bytes(dtype), phase * octavo::dtype_bytes(dtype));
  std::vector<float> values = any_finite_values(numel, 11);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float special[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, -0.0f, 0.0f};
  for (std::size_t i = 5; i < values.size(); i += 23) values[i] = special[i / 23 % std::size(special)];
  for (std::int64_t i = 0; i < numel; ++i)
    reference::store_nearest(dtype, buffer.data(), i, values[static_cast<std::size_t>(i)]);
  return buffer;
}

void expect_equals_reference(DType dtype, const Shape& shape, std::int64_t phase, double probability,
                             int threads) {
  const Buffer from = input(dtype, shape.numel(), phase);
  const Buffer before = from;
  Buffer to(from.size(), (phase + 3) % 8 * octavo::dtype_bytes(dtype)), expected(from.size());
  DropoutArgs args = args_of(dtype, shape, from, to);
  args.probability = probability;
  args.threads = threads;
  ASSERT_TRUE(octavo::dropout(args).ok());
  EXPECT_TRUE(to.surroundings_intact());
  DropoutArgs plain = args;
  plain.to = expected.data();
  reference::dropout(plain);
  const auto size = static_cast<std::size_t>(from.size());
  EXPECT_TRUE(std::memcmp(to.data(), expected.data(), size) == 0)
      << name(dtype) << ' ' << shape.outer << 'x' << shape.batch << 'x' << shape.inner << " at " << phase
      << ", p = " << probability;
  EXPECT_TRUE(std::memcmp(from.data(), before.data(), size) == 0) << "the input was written";
  Buffer in_place = from;
  args.from = args.to = in_place.data();
  ASSERT_TRUE(octavo::dropout(args).ok());
  EXPECT_TRUE(std::memcmp(in_place.data(), expected.data(), size) == 0) << "in place";
}

TEST(Dropout, EqualsTheReferenceWithEveryImplementation) {
  const Shape shapes[] = {{1, 1, 1},   {5, 4, 1},    {1, 3, 7},    {2, 3, 256},  {3, 2, 257},
                          {2, 2, 512}, {1, 2, 1023}, {3, 5, 1000}, {1, 1, 4100}, {2, 1, 40000}};
  for (const auto& each : octavo::implementations()) {
    if (!each.supported) continue;
    SCOPED_TRACE(each.name);
    ASSERT_TRUE(octavo::force_implementation(each.name).ok());
    int turn = 0;
    for (const DType dtype : octavo::all_dtypes()) {
      for (const Shape& shape : shapes) {
        for (const double probability : {0.1, 0.5, 0.999999}) {
          ++turn;
          expect_equals_reference(dtype, shape, turn % 8, probability, turn % 3);
        }
      }
    }
  }
  ASSERT_TRUE(octavo::force_implementation("").ok());
}

// Tests rows with gaps between their numbers, which cross 2^32.
TEST(Dropout, RowsEqualTheReference) {
  struct Rows {
    Shape shape;
    std::int64_t row, pitch;
  };
  const Rows cases[] = {{{2, 3, 60}, 5, 5},
                        {{2, 3, 60}, 5, 65536},
                        {{1, 2, 900}, 300, 301},
                        {{3, 2, 7}, 7, 1000},
                        {{2, 2, 512}, 512, 513},
                        {{1, 1, 1000}, 1, 65536},
                        {{2, 1, 60}, 20, std::int64_t{1} << 31},
                        {{1, 1, 9000}, 4500, 65536}};
  for (const Rows& each : cases) {
    const Buffer from = input(DType::bf16, each.shape.numel(), 1);
    Buffer to(from.size(), 2), expected(from.size());
    DropoutArgs args = args_of(DType::bf16, each.shape, from, to);
    args.row = each.row;
    args.pitch = each.pitch;
    ASSERT_TRUE(octavo::dropout(args).ok());
    EXPECT_TRUE(to.surroundings_intact());
    args.to = expected.data();
    reference::dropout(args);
    EXPECT_TRUE(std::memcmp(to.data(), expected.data(), static_cast<std::size_t>(from.size())) == 0)
        << each.row << " of " << each.pitch;
  }
}

TEST(Dropout, HasTheBitsOfTheDocument) {
  const std::uint32_t expected[] = {0xCC27, 0xF86A, 0x857F, 0x0984, 0xC1E9, 0xD72E};
  const std::uint64_t elements[] = {0, 1, 2, 3, 256, 512};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(reference::dropout16(0, 1, 0, 0, elements[i]), expected[i]) << i;
}

// Returns which elements of ones are kept. `samples` has one number for each row of `inner` elements.
std::vector<std::uint8_t> kept(std::int64_t inner, double probability,
                               const std::vector<std::int64_t>& samples, std::uint64_t seed = 3,
                               std::uint64_t step = 5, std::uint32_t layer = 2) {
  std::vector<float> values(static_cast<std::size_t>(inner) * samples.size(), 1.0f);
  DropoutArgs args;
  args.from = args.to = values.data();
  args.batch = static_cast<std::int64_t>(samples.size());
  args.inner = inner;
  args.samples = samples.data();
  args.probability = probability;
  args.seed = seed;
  args.step = step;
  args.layer = layer;
  EXPECT_TRUE(octavo::dropout(args).ok());
  std::vector<std::uint8_t> flags;
  for (const float value : values) flags.push_back(value != 0.0f);
  return flags;
}

// Returns six standard deviations: a good generator fails once in 500 million, and the generator is fixed.
double six_sigma(double probability, std::size_t count) {
  return 6.0 * std::sqrt(probability * (1.0 - probability) / static_cast<double>(count));
}
double share(const std::vector<std::uint8_t>& flags) {
  return static_cast<double>(std::count(flags.begin(), flags.end(), 1)) / static_cast<double>(flags.size());
}

TEST(Dropout, DropsWithTheProbability) {
  constexpr std::int64_t kNumel = 1 << 18;
  for (const double probability : {0x1p-10, 0.1, 0.3, 0.5, 0.9}) {
    const auto flags = kept(kNumel, probability, {9});
    EXPECT_NEAR(share(flags), 1.0 - probability, six_sigma(probability, flags.size())) << probability;
    // Each quarter of a block of 512 elements is tested separately: both halves of a counter's bits.
    for (std::size_t part = 0; part < 4; ++part) {
      std::vector<std::uint8_t> some;
      for (std::size_t i = 0; i < flags.size(); ++i) {
        if (i / 128 % 4 == part) some.push_back(flags[i]);
      }
      EXPECT_NEAR(share(some), 1.0 - probability, six_sigma(probability, some.size())) << probability;
    }
  }
}

// Returns the value of a kept element of one.
float factor(double probability) {
  const float one = 1.0f;
  float scaled = 0.0f;
  for (std::int64_t sample = 0; scaled == 0.0f; ++sample) {
    DropoutArgs args;
    args.from = &one;
    args.to = &scaled;
    args.batch = args.inner = 1;
    args.samples = &sample;
    args.probability = probability;
    if (!octavo::dropout(args).ok()) return -1.0f;
  }
  return scaled;
}

TEST(Dropout, TheFactorIsThatOfTheRoundedProbability) {
  for (const double probability : {0.0, 0.1, 0.3, 0.5, 0.7}) {
    const double rounded = std::floor(probability * 65536.0 + 0.5) / 65536.0;
    EXPECT_EQ(factor(probability), static_cast<float>(1.0 / (1.0 - rounded))) << probability;
  }
}

// Two masks agree in half of the elements if they are independent and the probability is a half.
TEST(Dropout, MasksAreIndependent) {
  constexpr std::int64_t kNumel = 1 << 18;
  const auto mask = kept(kNumel, 0.5, {9});
  const auto expect_independent = [&](const std::vector<std::uint8_t>& other, std::size_t shift,
                                      const std::string& what) {
    std::size_t same = 0;
    const std::size_t count = mask.size() - shift;
    for (std::size_t i = 0; i < count; ++i) same += mask[i + shift] == other[i] ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(same) / static_cast<double>(count), 0.5, six_sigma(0.5, count)) << what;
  };
  for (const std::size_t shift : {1U, 2U, 3U, 4U, 8U, 64U, 255U, 256U, 257U, 512U, 65536U})
    expect_independent(mask, shift, "shift " + std::to_string(shift));
  expect_independent(kept(kNumel, 0.5, {10}), 0, "sample");
  expect_independent(kept(kNumel, 0.5, {9}, 4), 0, "seed");
  expect_independent(kept(kNumel, 0.5, {9}, 3, 6), 0, "step");
  expect_independent(kept(kNumel, 0.5, {9}, 3, 5, 3), 0, "layer");
  // The masks also differ from the bits that round a parameter with the same number.
  std::vector<std::uint8_t> rounded_up;
  for (std::uint64_t i = 0; i < kNumel; ++i)
    rounded_up.push_back(reference::random16(3, 5, 9, 2, i) >= 0x8000);
  expect_independent(rounded_up, 0, "stochastic rounding");
}

TEST(Dropout, AMaskBelongsToItsSample) {
  constexpr std::int64_t kInner = 700;
  const auto all = kept(kInner, 0.3, {40, 41, 42, 43});
  const auto row = [&](const std::vector<std::uint8_t>& flags, std::int64_t index) {
    return std::vector<std::uint8_t>(flags.begin() + index * kInner, flags.begin() + (index + 1) * kInner);
  };
  const auto turned = kept(kInner, 0.3, {43, 40, 42, 41});
  EXPECT_EQ(row(turned, 0), row(all, 3));
  EXPECT_EQ(row(turned, 1), row(all, 0));
  EXPECT_EQ(row(turned, 2), row(all, 2));
  EXPECT_EQ(row(turned, 3), row(all, 1));
  EXPECT_EQ(kept(kInner, 0.3, {42}), row(all, 2));
  EXPECT_NE(row(all, 0), row(all, 1));
}

// In [outer, batch, inner], a sample has the mask of all its elements in one row.
TEST(Dropout, OuterRowsContinueTheSample) {
  constexpr std::int64_t kOuter = 3, kInner = 333;
  const std::int64_t samples[] = {5, 8};
  std::vector<float> values(static_cast<std::size_t>(kOuter * 2 * kInner), 1.0f);
  DropoutArgs args;
  args.from = args.to = values.data();
  args.outer = kOuter;
  args.batch = 2;
  args.inner = kInner;
  args.samples = samples;
  args.probability = 0.4;
  args.seed = 3;
  args.step = 5;
  args.layer = 2;
  ASSERT_TRUE(octavo::dropout(args).ok());
  const auto whole = kept(kOuter * kInner, 0.4, {5, 8});
  for (std::int64_t o = 0; o < kOuter; ++o) {
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = 0; i < kInner; ++i) {
        ASSERT_EQ(values[static_cast<std::size_t>((o * 2 + b) * kInner + i)] != 0.0f,
                  whole[static_cast<std::size_t>((b * kOuter + o) * kInner + i)] != 0)
            << o << ' ' << b << ' ' << i;
      }
    }
  }
}

// A part of a larger matrix has the same mask as the matrix alone.
TEST(Dropout, AMaskOfRowsDoesNotDependOnPadding) {
  const auto mask = [](std::int64_t rows, std::int64_t columns) {
    std::vector<float> values(static_cast<std::size_t>(rows * columns), 1.0f);
    const std::int64_t sample = 5;
    DropoutArgs args;
    args.from = args.to = values.data();
    args.batch = 1;
    args.inner = rows * columns;
    args.samples = &sample;
    args.probability = 0.4;
    args.row = columns;
    args.pitch = 65536;
    EXPECT_TRUE(octavo::dropout(args).ok());
    return values;
  };
  const auto small = mask(30, 41), large = mask(33, 280);
  for (std::size_t i = 0; i < 30; ++i) {
    for (std::size_t j = 0; j < 41; ++j) ASSERT_EQ(small[i * 41 + j], large[i * 280 + j]) << i << ' ' << j;
  }
}

TEST(Dropout, ProbabilityZeroKeepsEverything) {
  for (const DType dtype : octavo::all_dtypes()) {
    const Shape shape{1, 2, 600};
    const Buffer from = input(dtype, shape.numel(), 0);
    Buffer to(from.size());
    DropoutArgs args = args_of(dtype, shape, from, to);
    args.probability = 0.0;
    ASSERT_TRUE(octavo::dropout(args).ok());
    EXPECT_TRUE(std::memcmp(to.data(), from.data(), static_cast<std::size_t>(from.size())) == 0);
  }
}

}  // namespace
}  // namespace test
