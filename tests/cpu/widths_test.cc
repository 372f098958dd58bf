// Tests codes of any width below eight bits: their packing, and a toy format of six bits in the converters
// and in a step, against independent loops.
// SPDX-License-Identifier: MIT
#include "core/builtin_registry.h"
#include "cpu/block_codec.h"
#include "cpu/step_kernel.h"
#include "tests/toy/linear6.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

namespace octavo::cpu {
namespace {

using codecs::Linear6;
using scalar::Lane;

std::uint32_t next(std::uint32_t& state) { return (state = state * 1664525U + 1013904223U) >> 8; }

// Packs bit by bit: code i is bits [i * width, (i + 1) * width) of the row, the highest first.
std::vector<std::uint8_t> packed_by_bits(const std::vector<std::uint8_t>& codes, int width) {
  std::vector<std::uint8_t> out((codes.size() * static_cast<std::size_t>(width) + 7) / 8, 0);
  std::size_t at = 0;
  for (const std::uint8_t code : codes) {
    for (int bit = width - 1; bit >= 0; --bit, ++at)
      out[at / 8] = static_cast<std::uint8_t>(out[at / 8] | ((code >> bit) & 1) << (7 - at % 8));
  }
  return out;
}

template <int kBits>
void check_width() {
  std::uint32_t state = kBits;
  for (std::size_t n = 0; n < 70; ++n) {
    std::vector<std::uint8_t> codes(n);
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(next(state) & ((1U << kBits) - 1));
    const std::vector<std::uint8_t> expected = packed_by_bits(codes, kBits);
    std::vector<std::uint8_t> bytes(expected.size() + 1, 0xA5);
    pack_codes<Lane, kBits>(codes.data(), static_cast<std::int64_t>(n), bytes.data());
    ASSERT_EQ(bytes.back(), 0xA5) << kBits << " bits, " << n << ": wrote past the end";
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), bytes.begin())) << kBits << " bits, " << n;
    std::vector<std::uint8_t> back(n + 7);
    unpack_codes<Lane, kBits>(bytes.data(), static_cast<std::int64_t>(n), back.data());
    ASSERT_TRUE(std::equal(codes.begin(), codes.end(), back.begin())) << kBits << " bits, " << n;
  }
}

TEST(Widths, CodesPackOneAfterTheOther) {
  check_width<1>();
  check_width<2>();
  check_width<3>();
  check_width<4>();
  check_width<5>();
  check_width<6>();
  check_width<7>();
}

// A moment in the toy format, by its definition: x rounded to the nearest multiple of 1/32 (m) or 1/64 (v).
struct Moments {
  std::vector<float> values;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};
Moments toy(const std::vector<float>& values, std::size_t block, bool second) {
  Moments out{values, {}, {}};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % block == 0) {
      float largest = 0.0F;
      for (std::size_t k = i; k < std::min(i + block, values.size()); ++k)
        largest = std::max(largest, std::fabs(values[k]));
      out.scales.push_back(largest);
    }
    const float scale = out.scales.back();
    const double x = scale == 0.0F ? 0.0 : static_cast<double>(values[i] * (1.0F / scale));
    const double steps = std::fabs(x) * (second ? 64 : 32);
    const double rank = std::ceil(steps - 0.5);  // ties to the smaller magnitude
    const double code = second ? std::max(rank, 1.0) - 1 : std::max(0.0, 31 + (x < 0 ? -rank : rank));
    out.codes.push_back(static_cast<std::uint8_t>(code));
    out.values[i] = static_cast<float>(second ? (code + 1) / 64 : (code - 31) / 32) *
                    scale;  // exact in a float, then scaled
  }
  return out;
}

template <Moment kMoment>
void check_conversion() {
  constexpr std::int64_t kBlock = 32;
  const auto scratch = std::make_unique<Scratch>();
  std::uint32_t state = 5;
  for (const std::size_t n : {1U, 7U, 31U, 32U, 33U, 100U, 1000U}) {
    std::vector<float> values(n);
    for (float& value : values) {
      value = static_cast<float>(next(state) % 2001) / 1000.0F - 1.0F;
      if (kMoment == Moment::second) value = std::fabs(value);
    }
    const Moments expected = toy(values, kBlock, kMoment == Moment::second);
    std::vector<std::uint8_t> codes((n * 6 + 7) / 8, 0xFF);
    std::vector<float> scales(expected.scales.size());
    encode_run<Lane, Linear6, kMoment>(values.data(), static_cast<std::int64_t>(n), kBlock, codes.data(),
                                       scales.data(), scratch.get());
    ASSERT_EQ(codes, packed_by_bits(expected.codes, 6)) << n;
    ASSERT_EQ(scales, expected.scales) << n;
    std::vector<float> decoded(n);
    decode_run<Lane, Linear6, kMoment>(codes.data(), scales.data(), static_cast<std::int64_t>(n), kBlock,
                                       decoded.data(), scratch.get());
    ASSERT_EQ(decoded, expected.values) << n;
  }
}

TEST(Widths, SixBitsConvert) {
  check_conversion<Moment::first>();
  check_conversion<Moment::second>();
}

// Compares three steps of Adam with both moments in six bits with the formula: a moment is decoded, updated
// and encoded, in this order.
TEST(Widths, SixBitsStep) {
  constexpr std::size_t kNumel = 1000;  // a partial block at the end
  constexpr std::size_t kBlock = 64;
  using Rule = formula::Adam;
  const auto scratch = std::make_unique<Scratch>();
  std::vector<float> param(kNumel, 0.5F);
  std::vector<float> grad(kNumel);
  std::vector<std::uint8_t> codes[2] = {std::vector<std::uint8_t>(kNumel * 6 / 8),
                                        std::vector<std::uint8_t>(kNumel * 6 / 8)};
  std::vector<float> scales[2] = {std::vector<float>(16), std::vector<float>(16)};
  Moments m{std::vector<float>(kNumel), {}, {}};
  Moments v = m;
  std::vector<float> weights = param;
  std::uint32_t state = 99;
  for (std::int64_t step = 1; step <= 3; ++step) {
    Rule::Consts consts{};
    HyperParams hyper;
    Rule::derive(hyper, step, consts);
    for (float& g : grad) g = static_cast<float>(next(state) % 2001) / 1000.0F - 1.0F;
    for (std::size_t i = 0; i < kNumel; ++i) {
      scalar::F32 s[3] = {m.values[i], v.values[i], 0.0F};
      const scalar::F32 before(weights[i]);
      weights[i] = Rule::update(consts, formula::gradient(consts, scalar::F32(grad[i]), before), before, s).v;
      m.values[i] = s[0].v;
      v.values[i] = s[1].v;
    }
    m = toy(m.values, kBlock, false);
    v = toy(v.values, kBlock, true);

    StepTask task{};
    task.param = param.data();
    task.grad = grad.data();
    for (std::size_t s = 0; s < 2; ++s) {
      task.codes[s] = codes[s].data();
      task.scales_in[s] = task.scales_out[s] = scales[s].data();
    }
    task.count = kNumel;
    task.block = kBlock;
    task.consts = &consts;
    task.scratch = scratch.get();
    TileStep<Lane, Rule, Format<Linear6>>::run(task);
    ASSERT_EQ(codes[0], packed_by_bits(m.codes, 6)) << step;
    ASSERT_EQ(codes[1], packed_by_bits(v.codes, 6)) << step;
    ASSERT_EQ(scales[0], m.scales) << step;
    ASSERT_EQ(scales[1], v.scales) << step;
    ASSERT_EQ(param, weights) << step;
  }
}

TEST(Widths, AToyDescribesItself) {
  constexpr FormatInfo kInfo = Format<Linear6, codecs::Int8>::info(StateFormat{9}, StateFormat{9});
  EXPECT_EQ(kInfo.name, "6bit/8bit");
  EXPECT_EQ(kInfo.default_block, 128);
  EXPECT_EQ(kInfo.moment[0].bits, 6);
  EXPECT_EQ(kInfo.moment[0].element, "packed");
  EXPECT_EQ(kInfo.moment[0].zero_code, 31);
  EXPECT_EQ(kInfo.moment[1].bits, 8);
  EXPECT_EQ((codecs::zero_code<Linear6, Moment::second>()), -1);
  constexpr codecs::Outermost kOuter = codecs::outermost<Linear6, Moment::first>();
  EXPECT_EQ(kOuter.negative, -31.0F / 32);
  EXPECT_EQ(kOuter.positive, 1.0F);
}

}  // namespace
}  // namespace octavo::cpu
