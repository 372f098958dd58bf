// What the formats say of themselves, in C++ and through the C ABI.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <octavo/codec.h>
#include <octavo/formats.h>
#include <octavo/octavo.h>

#include <set>
#include <string>
#include <vector>

namespace {

using octavo::FormatInfo;
using octavo::Moment;
using octavo::Rounding;
using octavo::ScalePolicy;
using octavo::StateFormat;
using ::testing::HasSubstr;

std::string facts(const FormatInfo& info, Moment moment) {
  const octavo::MomentFormat& m = info.moment[static_cast<std::size_t>(moment)];
  return std::string(m.element) + " " + std::to_string(m.bits) + " scale " +
         std::to_string(static_cast<int>(m.scale)) + " rounding " +
         std::to_string(static_cast<int>(m.rounding)) + " zero " + std::to_string(m.zero_code);
}

// Names and numbers are ABI and stand in checkpoints: written out here once more.
TEST(Formats, AreTheseByNumber) {
  struct Row {
    std::string_view name;
    int block;
    std::string first, second;
  };
  const std::vector<Row> rows = {
      {"fp32", 0, "float32 32 scale 0 rounding 0 zero 0", "float32 32 scale 0 rounding 0 zero 0"},
      {"bf16", 0, "bfloat16 16 scale 0 rounding 0 zero 0", "bfloat16 16 scale 0 rounding 1 zero 0"},
      {"8bit", 256, "uint8 8 scale 1 rounding 0 zero 127", "uint8 8 scale 1 rounding 0 zero 0"},
      {"4bit", 128, "packed 4 scale 1 rounding 0 zero 7", "packed 4 scale 1 rounding 0 zero -1"},
      {"4bit-rank1", 128, "packed 4 scale 1 rounding 0 zero 7", "packed 4 scale 2 rounding 0 zero -1"},
      {"fp8", 256, "float8_e4m3fn 8 scale 1 rounding 0 zero 0", "float8_e4m3fn 8 scale 1 rounding 0 zero 0"},
      {"fp8-e5m2", 256, "float8_e5m2 8 scale 1 rounding 0 zero 0", "float8_e5m2 8 scale 1 rounding 0 zero 0"},
      {"4bit/8bit", 128, "packed 4 scale 1 rounding 0 zero 7", "uint8 8 scale 1 rounding 0 zero 0"},
      {"fp4", 128, "packed 4 scale 1 rounding 1 zero 0", "packed 4 scale 1 rounding 1 zero -1"},
      {"fp3", 128, "packed 3 scale 1 rounding 1 zero 0", "packed 3 scale 1 rounding 1 zero -1"},
  };
  ASSERT_EQ(octavo::formats().size(), rows.size());
  ASSERT_EQ(octavo::all_state_formats().size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FormatInfo& info = octavo::formats()[i];
    SCOPED_TRACE(rows[i].name);
    EXPECT_EQ(info.number, static_cast<StateFormat>(i));
    EXPECT_EQ(info.name, rows[i].name);
    EXPECT_EQ(octavo::name(info.number), rows[i].name);
    EXPECT_EQ(info.default_block, rows[i].block);
    EXPECT_EQ(octavo::default_block_size(info.number), rows[i].block);
    EXPECT_EQ(facts(info, Moment::first), rows[i].first);
    EXPECT_EQ(facts(info, Moment::second), rows[i].second);
    const bool axes = rows[i].name == "4bit-rank1";
    EXPECT_EQ(info.format_for_1d, axes ? StateFormat::int4 : info.number);
    EXPECT_EQ(octavo::describe(info.number), &info);
  }
  const auto beyond = static_cast<StateFormat>(rows.size());
  EXPECT_EQ(octavo::describe(beyond), nullptr);
  EXPECT_EQ(octavo::name(beyond), "unknown");
  EXPECT_EQ(octavo::default_block_size(beyond), 0);
}

// A description against what the codec does: bytes of codes, number of scales, and what code zero_code means.
TEST(Formats, DescribeWhatTheCodecsDo) {
  for (const FormatInfo& info : octavo::formats()) {
    for (const Moment moment : {Moment::first, Moment::second}) {
      SCOPED_TRACE(std::string(info.name) + (moment == Moment::first ? " m" : " v"));
      const octavo::MomentFormat& m = info.moment[static_cast<std::size_t>(moment)];
      octavo::MomentSpec spec;
      spec.moment = moment;
      spec.format = info.number;
      spec.numel = 1024;
      spec.shape = {32, 32};
      spec.ndim = 2;
      const auto size = octavo::layout(spec).value();
      EXPECT_EQ(size.codes_bytes, 1024 * m.bits / 8);
      EXPECT_EQ(size.scales, m.scale == ScalePolicy::none    ? 0
                             : m.scale == ScalePolicy::block ? 1024 / info.default_block
                                                             : 32 + 32);
      EXPECT_EQ(m.element == "packed", m.bits < 8);
      // Code 0 is zero under a scale of one exactly where zero_code is 0.
      std::vector<std::byte> codes(static_cast<std::size_t>(size.codes_bytes));
      std::vector<float> scales(static_cast<std::size_t>(size.scales), 1.0F);
      std::vector<float> values(1024);
      ASSERT_TRUE(octavo::decode(spec, codes, scales, values).ok());
      EXPECT_EQ(values[0] == 0.0F, m.zero_code == 0);
    }
  }
}

TEST(Formats, ParseByNameAndOtherSpelling) {
  for (const FormatInfo& info : octavo::formats()) {
    EXPECT_EQ(octavo::parse_state_format(info.name).value(), info.number);
    for (const std::string_view alias : info.aliases)
      EXPECT_EQ(octavo::parse_state_format(alias).value(), info.number);
  }
  EXPECT_EQ(octavo::parse_state_format("float32").value(), StateFormat::fp32);
  EXPECT_EQ(octavo::parse_state_format("bfloat16").value(), StateFormat::bf16);
  EXPECT_EQ(octavo::parse_state_format("fp8-e4m3").value(), StateFormat::fp8_e4m3);
}

TEST(Formats, APairThatIsNotCompiledIsAnErrorThatListsThoseThatAre) {
  const auto parsed = octavo::parse_state_format("8bit/4bit");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().message(),
            "[octavo] state: got '8bit/4bit', expected a pair (first moments/second moments) that is "
            "compiled, 4bit/8bit, or one of fp32, bf16, 8bit, 4bit, 4bit-rank1, fp8, fp8-e5m2, fp4, fp3");
  EXPECT_EQ(octavo::parse_state_format("7bit").status().message(),
            "[octavo] state: got '7bit', expected one of fp32, bf16, 8bit, 4bit, 4bit-rank1, fp8, fp8-e5m2, "
            "fp4, fp3, 4bit/8bit");
}

// A pair is its two codecs and nothing else: after the same gradients its m has the bytes of 4bit's, its v
// those of 8bit's in blocks of the same length.
TEST(Formats, APairsMomentsAreThoseOfItsCodecs) {
  constexpr std::int64_t kNumel = 5000;
  struct States {
    std::vector<std::uint8_t> codes[2];
    std::vector<float> scales[2];
  };
  const auto train = [&](StateFormat format, std::int64_t block) {
    octavo::TensorArgs tensor;
    tensor.spec.numel = kNumel;
    tensor.spec.format = format;
    tensor.spec.block_size = block;
    const octavo::GroupConfig config;
    const auto size = octavo::layout(config, tensor.spec).value();
    std::vector<float> param(kNumel, 1.0F);
    std::vector<float> grad(kNumel);
    States states;
    for (std::size_t s = 0; s < 2; ++s) {
      states.codes[s].resize(static_cast<std::size_t>(size.slot[s].codes_bytes));
      states.scales[s].resize(static_cast<std::size_t>(size.slot[s].scales));
      tensor.state[s] = {states.codes[s].data(), states.scales[s].data()};
    }
    tensor.param = param.data();
    tensor.grad = grad.data();
    octavo::Group group = octavo::Group::create(config, {&tensor, 1}).value();
    octavo::StepArgs args;
    for (args.step = 1; args.step <= 3; ++args.step) {
      for (std::size_t i = 0; i < grad.size(); ++i)
        grad[i] = static_cast<float>((i * 7919 + static_cast<std::size_t>(args.step) * 131) % 1009) - 504.0F;
      EXPECT_TRUE(group.step(args).ok());
    }
    return states;
  };
  const States pair = train(StateFormat::int4_int8, 0);
  const States low = train(StateFormat::int4, 128);
  const States high = train(StateFormat::int8, 128);
  EXPECT_EQ(pair.codes[0], low.codes[0]);
  EXPECT_EQ(pair.scales[0], low.scales[0]);
  EXPECT_EQ(pair.codes[1], high.codes[1]);
  EXPECT_EQ(pair.scales[1], high.scales[1]);
}

TEST(Formats, ThroughTheCAbi) {
  ASSERT_EQ(octavo_format_count(), static_cast<int32_t>(octavo::formats().size()));
  for (int32_t i = 0; i < octavo_format_count(); ++i) {
    octavo_format_info got{};
    got.struct_size = sizeof got;
    ASSERT_EQ(octavo_format(i, &got), 0U) << octavo_last_error();
    const FormatInfo& info = octavo::formats()[static_cast<std::size_t>(i)];
    EXPECT_EQ(got.struct_size, sizeof got);
    EXPECT_EQ(got.number, static_cast<uint32_t>(info.number));
    EXPECT_STREQ(got.name, std::string(info.name).c_str());  // with a zero behind it, pairs too
    EXPECT_EQ(got.default_block, info.default_block);
    EXPECT_EQ(got.of_vectors, static_cast<uint32_t>(info.format_for_1d));
    for (std::size_t m = 0; m < 2; ++m) {
      EXPECT_EQ(got.moment[m].bits, static_cast<uint32_t>(info.moment[m].bits));
      EXPECT_EQ(got.moment[m].scale, static_cast<uint32_t>(info.moment[m].scale));
      EXPECT_EQ(got.moment[m].rounding, static_cast<uint32_t>(info.moment[m].rounding));
      EXPECT_EQ(got.moment[m].zero_code, info.moment[m].zero_code);
      EXPECT_STREQ(got.moment[m].element, std::string(info.moment[m].element).c_str());
    }
  }
  octavo_format_info out{};
  out.struct_size = sizeof out;
  EXPECT_EQ(octavo_format(octavo_format_count(), &out), 1U);
  EXPECT_THAT(octavo_last_error(), HasSubstr("index: got"));
  EXPECT_EQ(octavo_format(-1, &out), 1U);
  EXPECT_EQ(octavo_format(0, nullptr), 1U);
  out.struct_size = 1;
  EXPECT_EQ(octavo_format(0, &out), 1U);
  EXPECT_THAT(octavo_last_error(), HasSubstr("struct_size"));
}

}  // namespace
