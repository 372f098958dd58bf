// Codes that a step rounds stochastically (fp4, fp3): the mean of a first moment and the mean logarithm of a
// second one are kept, decisions are independent of each other, and shards, threads and the boundary of 2^32
// elements change no bit. docs/formats.md defines the random bits.
// SPDX-License-Identifier: MIT
#include "tests/reference/formats.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <octavo/formats.h>

#include <cmath>
#include <cstring>

namespace test {
namespace {

using octavo::DType;
using octavo::Moment;
using octavo::StateFormat;
using octavo::TensorSpec;
using octavo::WeightStore;

constexpr std::int64_t kBlock = 128;
constexpr StateFormat kFormats[] = {StateFormat::fp4, StateFormat::fp3};

float largest(StateFormat format, Moment moment) {
  float out = 0.0F;
  for (const float value : reference::map_small_float(format, moment)) out = std::max(out, value);
  return out;
}

int code_bits(StateFormat format) { return format == StateFormat::fp4 ? 4 : 3; }

// Returns the codes of a slot, one per element.
std::vector<int> codes_of(const TensorBuffers& t, std::size_t slot) {
  const int bits = code_bits(t.spec.format);
  std::vector<int> out;
  for (std::int64_t i = 0; i < t.spec.numel; ++i) {
    int code = 0;
    for (std::int64_t at = i * bits; at < (i + 1) * bits; ++at)
      code = 2 * code + ((t.codes[slot].as<std::uint8_t>()[at / 8] >> (7 - at % 8)) & 1);
    out.push_back(code);
  }
  return out;
}

// Runs a first step of AdamW after which m is `m` and v is `v` in units of their blocks' scales, except for
// each block's first element, which is the maximum.
TensorBuffers stepped(StateFormat format, float gradient, Moment moment, std::int64_t numel,
                      std::int64_t offset = 0, WeightStore store = WeightStore::nearest, int threads = 0) {
  const octavo::GroupConfig config{octavo::Algorithm::adamw, false, false};
  const bool stochastic = store == WeightStore::stochastic;
  const TensorSpec spec =
      tensor_spec(numel, stochastic ? DType::bf16 : DType::f32, DType::f32, store, format, kBlock);
  TensorSet set(config, {&spec, 1}, 0);
  TensorBuffers& t = set.tensors()[0];
  t.id = 7;
  t.offset = offset;
  const float top = largest(format, moment);
  for (std::int64_t i = 0; i < numel; ++i) {
    const float wanted = (offset + i) % kBlock == 0 ? top : gradient;
    t.grad.as<float>()[i] = moment == Moment::first ? wanted : std::sqrt(wanted);
    if (stochastic) {
      t.param.as<std::uint16_t>()[i] = 0x3F80;
    } else {
      t.param.as<float>()[i] = 1.0F;
    }
  }
  octavo::StepArgs args;
  args.hyper.lr = 0x1p-9;
  args.hyper.beta1 = 0.5;
  args.hyper.beta2 = 0.5;
  args.hyper.eps = 0.0;
  args.step = 1;
  args.seed = 5;
  args.threads = threads;
  EXPECT_TRUE(set.step(args).ok());
  return std::move(t);
}

struct Means {
  double value = 0.0, log2 = 0.0;
};
Means means(const TensorBuffers& t, Moment moment) {
  const auto& map = reference::map_small_float(t.spec.format, moment);
  Means out;
  double count = 0.0;
  const std::vector<int> codes = codes_of(t, moment == Moment::first ? 0 : 1);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (i % kBlock == 0) continue;
    const double value = map[static_cast<std::size_t>(codes[i])];
    out.value += value;
    if (moment == Moment::second) out.log2 += std::log2(value);
    ++count;
  }
  return {out.value / count, out.log2 / count};
}

TEST(CodeRounding, TheMeanOfAFirstMomentIsTheMoment) {
  constexpr std::int64_t kNumel = 1 << 17;
  for (const StateFormat format : kFormats) {
    for (const float m : {0.0F, 0.01F, 0.2F, 0.25F, 0.9F, 1.3F, 2.2F, 3.7F, -0.4F, -1.9F}) {
      const Means got = means(stepped(format, m, Moment::first, kNumel), Moment::first);
      // The distance of neighbouring values is at most 2; six standard deviations of a decision.
      EXPECT_NEAR(got.value, static_cast<double>(m), 6.0 / std::sqrt(static_cast<double>(kNumel)))
          << octavo::name(format) << " m = " << m;
    }
  }
}

// Rounding to the nearest power would be wrong by up to half of an octave, and rounding that keeps the mean
// of v changes the mean logarithm by 0.086 at most (fp3; 0.03 in fp4).
TEST(CodeRounding, TheMeanLogarithmOfASecondMomentIsKept) {
  constexpr std::int64_t kNumel = 1 << 17;
  for (const StateFormat format : kFormats) {
    const double bound = format == StateFormat::fp4 ? 0.008 : 0.02;
    for (const float v : {1.0F, 1.1F, 1.25F, 1.4F, 1.7F, 2.5F, 3.5F, 11.0F, 90.0F, 120.0F}) {
      const Means got = means(stepped(format, v, Moment::second, kNumel), Moment::second);
      EXPECT_NEAR(got.log2, std::log2(static_cast<double>(v)), bound) << octavo::name(format) << " v = " << v;
    }
  }
}

TEST(CodeRounding, ValuesOfTheMapStay) {
  for (const StateFormat format : kFormats) {
    for (const Moment moment : {Moment::first, Moment::second}) {
      const auto& map = reference::map_small_float(format, moment);
      for (std::size_t code = 0; code < map.size(); ++code) {
        if (std::signbit(map[code]) && map[code] == 0.0F) continue;
        // The square of a root may be off by a rounding: only powers of four are tested as second moments.
        if (moment == Moment::second && std::fmod(std::log2(map[code]), 2.0F) != 0.0F) continue;
        // fp4's scale of v is a maximum divided by 192 = 3 * 64, whose root is not exact.
        if (moment == Moment::second && format == StateFormat::fp4) continue;
        if (moment == Moment::second && map[code] * 2.0F > largest(format, moment)) continue;
        const TensorBuffers t = stepped(format, map[code], moment, 1024);
        const std::vector<int> codes = codes_of(t, moment == Moment::first ? 0 : 1);
        for (std::size_t i = 0; i < codes.size(); ++i) {
          if (i % kBlock == 0) continue;
          ASSERT_EQ(codes[i], static_cast<int>(code)) << octavo::name(format) << " element " << i;
        }
      }
    }
  }
}

// Half of the elements of two lists of independent decisions agree: m with v, whose random bits come from one
// hash, both with the weights, and neighbours with each other.
TEST(CodeRounding, DecisionsAreIndependent) {
  constexpr std::int64_t kNumel = 1 << 17;
  const double six_sigma = 3.0 / std::sqrt(static_cast<double>(kNumel));
  for (const StateFormat format : kFormats) {
    // g = 2.4494898 gives m = 1.2247449 and v = 3, in units of 1/2; blocks with one value alone need another
    // maximum for each moment, so the two lists come from two steps with the same random bits.
    const float half_m = 2.5F;
    const TensorBuffers first =
        stepped(format, format == StateFormat::fp4 ? half_m : 3.0F, Moment::first, kNumel);
    const std::vector<int> m = codes_of(first, 0);
    const TensorBuffers second = stepped(format, format == StateFormat::fp4 ? 2.45F : 2.82F, Moment::second,
                                         kNumel, 0, WeightStore::stochastic);
    const std::vector<int> v = codes_of(second, 1);
    const auto agreement = [&](auto&& a, auto&& b) {
      double equal = 0.0, count = 0.0;
      for (std::size_t i = 0; i < m.size(); ++i) {
        if (i % kBlock == 0) continue;
        equal += a(i) == b(i) ? 1.0 : 0.0;
        ++count;
      }
      return equal / count;
    };
    const int low_m = *std::min_element(m.begin(), m.end());
    int low_v = 1000;
    for (std::size_t i = 0; i < v.size(); ++i)
      if (i % kBlock != 0) low_v = std::min(low_v, v[i]);
    const auto m_up = [&](std::size_t i) { return m[i] > low_m; };
    const auto v_up = [&](std::size_t i) { return v[i] > low_v; };
    // The step is a quarter of bf16's unit below 1: a fixed share of the weights is rounded up.
    const auto w_up = [&](std::size_t i) { return second.param.as<std::uint16_t>()[i] == 0x3F80; };
    const auto share = [&](auto&& a) { return agreement(a, [](std::size_t) { return true; }); };
    const auto expected = [&](double a, double b) { return a * b + (1.0 - a) * (1.0 - b); };
    ASSERT_NEAR(share(m_up), 0.5, 0.05);
    ASSERT_NEAR(share(v_up), 0.5, 0.05);
    ASSERT_GT(share(w_up), 0.1);
    ASSERT_LT(share(w_up), 0.9);
    EXPECT_NEAR(agreement(m_up, v_up), expected(share(m_up), share(v_up)), six_sigma);
    EXPECT_NEAR(agreement(m_up, w_up), expected(share(m_up), share(w_up)), six_sigma);
    EXPECT_NEAR(agreement(v_up, w_up), expected(share(v_up), share(w_up)), six_sigma);
    for (const std::size_t lag : {1U, 2U, 8U, 64U}) {
      const auto before = [&](std::size_t i) {
        return m_up(i >= lag && (i - lag) % kBlock != 0 ? i - lag : i + 1);
      };
      EXPECT_NEAR(agreement(m_up, before), expected(share(m_up), share(m_up)), six_sigma) << lag;
    }
  }
}

std::vector<std::byte> bytes_of(const Buffer& buffer) {
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

TEST(CodeRounding, ShardsAndThreadsChangeNoBit) {
  constexpr std::int64_t kNumel = 40 * kBlock;
  for (const StateFormat format : kFormats) {
    for (const std::int64_t base : {std::int64_t{0}, (std::int64_t{1} << 32) - 10 * kBlock}) {
      const TensorBuffers whole = stepped(format, 1.3F, Moment::first, kNumel, base);
      const TensorBuffers one = stepped(format, 1.3F, Moment::first, kNumel, base, WeightStore::nearest, 1);
      for (std::size_t slot = 0; slot < 2; ++slot) {
        EXPECT_EQ(bytes_of(whole.codes[slot]), bytes_of(one.codes[slot]));
        std::vector<std::byte> joined;
        std::int64_t at = 0;
        for (const std::int64_t blocks : {1, 7, 30, 2}) {
          const auto part =
              bytes_of(stepped(format, 1.3F, Moment::first, blocks * kBlock, base + at).codes[slot]);
          joined.insert(joined.end(), part.begin(), part.end());
          at += blocks * kBlock;
        }
        ASSERT_EQ(at, kNumel);
        EXPECT_EQ(joined, bytes_of(whole.codes[slot])) << octavo::name(format) << " from " << base;
      }
    }
  }
}

}  // namespace
}  // namespace test
