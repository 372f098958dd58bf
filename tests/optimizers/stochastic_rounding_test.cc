// Stochastic rounding as a user sees it: unbiased, uniform, keyed by seed, step, id and global index, and the
// same for a tensor cut into shards. The bits are read through the step: p - 0 stores p rounded by its
// sixteen random bits.
// SPDX-License-Identifier: MIT
#include "tests/reference/formats.h"
#include "tests/reference/step.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"

#include <cmath>
#include <cstring>
#include <numeric>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;
using octavo::WeightStore;

struct Key {
  std::uint64_t seed = 1, id = 2;
  std::int64_t step = 3, offset = 0;
};

// p = 1 and g = -fraction ulp with lr 1: every parameter becomes 1 + fraction ulp of bf16, rounded up or
// down. Returns one flag per element: rounded up.
std::vector<std::uint8_t> round_up_flags(std::int64_t numel, double fraction, const Key& key) {
  const octavo::GroupConfig config{octavo::Algorithm::sgd, false, false};
  const TensorSpec spec =
      tensor_spec(numel, DType::bf16, DType::f32, WeightStore::stochastic, StateFormat::fp32);
  TensorSet set(config, {&spec, 1}, 0);
  TensorBuffers& t = set.tensors()[0];
  t.id = key.id;
  t.offset = key.offset;
  for (std::int64_t i = 0; i < numel; ++i) {
    t.param.as<std::uint16_t>()[i] = 0x3F80;
    t.grad.as<float>()[i] = static_cast<float>(-fraction * 0x1p-7);
  }
  octavo::StepArgs args;
  args.hyper.lr = 1.0;
  args.step = key.step;
  args.seed = key.seed;
  EXPECT_TRUE(set.step(args).ok());
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(numel));
  for (std::int64_t i = 0; i < numel; ++i) {
    const std::uint16_t code = t.param.as<std::uint16_t>()[i];
    EXPECT_TRUE(code == 0x3F80 || code == 0x3F81);
    flags[static_cast<std::size_t>(i)] = code == 0x3F81;
  }
  return flags;
}

double mean(const std::vector<std::uint8_t>& flags) {
  return static_cast<double>(std::accumulate(flags.begin(), flags.end(), std::int64_t{0})) /
         static_cast<double>(flags.size());
}

// Six standard deviations: wrong once in 500 million for a good generator, and the generator is fixed.
double six_sigma(double probability, double count) {
  return 6.0 * std::sqrt(probability * (1.0 - probability) / count);
}

TEST(StochasticRounding, RoundsUpWithTheProbabilityOfTheRest) {
  constexpr std::int64_t kNumel = 1 << 18;
  for (const double fraction : {0.0, 0x1p-10, 0.1, 0.25, 0.5, 0.75, 0.99}) {
    const auto bits = static_cast<std::int64_t>(fraction * 65536.0);
    const double probability = static_cast<double>(bits) / 65536.0;
    const double got = mean(round_up_flags(kNumel, probability, {}));
    EXPECT_NEAR(got, probability, six_sigma(probability, kNumel)) << fraction;
  }
}

TEST(StochasticRounding, ExactValuesStay) {
  EXPECT_EQ(mean(round_up_flags(1 << 16, 0.0, {})), 0.0);
  EXPECT_EQ(mean(round_up_flags(1 << 16, 1.0, {})), 1.0);
}

// Half the elements of two runs agree when the runs are independent.
TEST(StochasticRounding, EveryPartOfTheKeyMatters) {
  constexpr std::int64_t kNumel = 1 << 17;
  const auto base = round_up_flags(kNumel, 0.5, {});
  const auto agreement = [&](const Key& key) {
    const auto other = round_up_flags(kNumel, 0.5, key);
    std::int64_t equal = 0;
    for (std::size_t i = 0; i < base.size(); ++i) equal += base[i] == other[i];
    return static_cast<double>(equal) / static_cast<double>(kNumel);
  };
  EXPECT_EQ(agreement({}), 1.0);
  const double bound = six_sigma(0.5, static_cast<double>(kNumel));
  for (const std::uint64_t seed : {0u, 2u, 3u, 1u << 31})
    EXPECT_NEAR(agreement({seed, 2, 3, 0}), 0.5, bound) << seed;
  for (const std::uint64_t id : {0u, 1u, 3u, 4u}) EXPECT_NEAR(agreement({1, id, 3, 0}), 0.5, bound) << id;
  for (const std::int64_t step : {1, 2, 4, 5}) EXPECT_NEAR(agreement({1, 2, step, 0}), 0.5, bound) << step;
  for (const std::int64_t offset :
       {std::int64_t{1}, std::int64_t{64}, std::int64_t{1} << 32, std::int64_t{1} << 40}) {
    EXPECT_NEAR(agreement({1, 2, 3, offset}), 0.5, bound) << offset;
  }
  EXPECT_NEAR(agreement({2, 1, 3, 0}), 0.5, bound) << "seed and id exchanged";
  EXPECT_NEAR(agreement({3, 2, 1, 0}), 0.5, bound) << "seed and step exchanged";
}

TEST(StochasticRounding, NeighboursAreIndependent) {
  const auto flags = round_up_flags(1 << 18, 0.5, {});
  for (const std::size_t lag : {1u, 2u, 3u, 4u, 8u, 16u, 32u, 64u, 256u, 4096u}) {
    std::int64_t equal = 0;
    for (std::size_t i = lag; i < flags.size(); ++i) equal += flags[i] == flags[i - lag];
    const auto count = static_cast<double>(flags.size() - lag);
    EXPECT_NEAR(static_cast<double>(equal) / count, 0.5, six_sigma(0.5, count)) << lag;
  }
}

TEST(StochasticRounding, ShardsEqualTheWhole) {
  constexpr std::int64_t kNumel = 5003;
  for (const std::int64_t base : {std::int64_t{0}, (std::int64_t{1} << 32) - 1000}) {
    const auto whole = round_up_flags(kNumel, 0.3, {1, 2, 3, base});
    std::vector<std::uint8_t> joined;
    std::int64_t at = 0;
    for (const std::int64_t size : {1, 999, 1, 1002, 3000}) {
      const auto part = round_up_flags(size, 0.3, {1, 2, 3, base + at});
      joined.insert(joined.end(), part.begin(), part.end());
      at += size;
    }
    ASSERT_EQ(at, kNumel);
    EXPECT_EQ(joined, whole);
  }
}

TEST(StochasticRounding, ImplementationsAgreeAcrossTheThirtyTwoBitBoundary) {
  for (const std::int64_t offset : {(std::int64_t{1} << 32) - 77, (std::int64_t{7} << 32) - 3}) {
    std::vector<std::vector<std::uint8_t>> results;
    for (const std::string& implementation : supported_implementations()) {
      const ForcedImplementation forced(implementation);
      results.push_back(round_up_flags(1000, 0.5, {1, 2, 3, offset}));
    }
    std::vector<std::uint8_t> expected;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const std::uint32_t noise = reference::random16(1, 3, 2, 0, static_cast<std::uint64_t>(offset) + i);
      expected.push_back(0x8000u + noise > 0xFFFFu);
    }
    for (const auto& result : results) EXPECT_EQ(result, expected);
  }
}

// All sixteen bits, from the reference that the step tests tie to the library bit for bit: 256 bins of either
// byte.
TEST(StochasticRounding, RandomBitsAreUniform) {
  constexpr int kCount = 1 << 20;
  for (const std::uint64_t id : {0u, 1u, 12345u}) {
    std::vector<std::int64_t> high(256), low(256), bit(16);
    for (std::uint64_t i = 0; i < kCount; ++i) {
      const std::uint32_t noise = reference::random16(9, 1, id, 0, i);
      ASSERT_LT(noise, 65536u);
      ++high[noise >> 8];
      ++low[noise & 255];
      for (std::size_t k = 0; k < 16; ++k) bit[k] += (noise >> k) & 1u;
    }
    for (const auto* bins : {&high, &low}) {
      double chi_square = 0.0;
      for (const std::int64_t count : *bins) {
        const double excess = static_cast<double>(count) - kCount / 256.0;
        chi_square += excess * excess / (kCount / 256.0);
      }
      // 255 degrees of freedom: mean 255, standard deviation 22.6; five of them on each side.
      EXPECT_GT(chi_square, 255 - 5 * 22.6);
      EXPECT_LT(chi_square, 255 + 5 * 22.6);
    }
    for (const std::int64_t count : bit)
      EXPECT_NEAR(static_cast<double>(count), kCount / 2.0, 6 * std::sqrt(kCount / 4.0));
  }
}

// bf16 second moments: nearest rounding would never let them fall; the stochastic mean follows the exact
// decay.
TEST(StochasticRounding, Bf16VarianceDecaysOnAverage) {
  constexpr std::int64_t kNumel = 8192;
  const octavo::GroupConfig config{octavo::Algorithm::adamw, false, true};
  const TensorSpec spec =
      tensor_spec(kNumel, DType::f32, DType::f32, WeightStore::nearest, StateFormat::bf16);
  TensorSet set(config, {&spec, 1}, 0);
  TensorBuffers& t = set.tensors()[0];
  for (std::int64_t i = 0; i < kNumel; ++i) t.codes[1].as<std::uint16_t>()[i] = 0x3F80;
  std::memset(t.grad.data(), 0, static_cast<std::size_t>(t.grad.size()));
  octavo::StepArgs args;
  constexpr int kSteps = 1000;
  for (int i = 1; i <= kSteps; ++i) {
    args.step = i;
    ASSERT_TRUE(set.step(args).ok());
  }
  double sum = 0.0;
  for (std::int64_t i = 0; i < kNumel; ++i)
    sum += static_cast<double>(reference::load(DType::bf16, t.codes[1].data(), i));
  // Each step adds at most a quarter of an ulp squared of variance: 2^-8 relative per step, so over 1000
  // steps a standard deviation below 2^-8 * sqrt(1000) / 2 = 6%, and 6% / sqrt(8192) for the mean. Six of
  // those.
  EXPECT_NEAR(sum / kNumel, std::pow(0.999, kSteps), 6 * 0.062 / std::sqrt(8192.0));
}

}  // namespace
}  // namespace test
