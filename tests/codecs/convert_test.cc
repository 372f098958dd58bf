// Conversion between any two formats equals decoding and encoding; inspect() counts the same as a plain loop.
// SPDX-License-Identifier: MIT
#include "tests/support/moment.h"
#include "tests/support/random.h"

#include <algorithm>
#include <cmath>

namespace test {
namespace {

using octavo::Moment;
using octavo::MomentSpec;
using octavo::StateFormat;

std::vector<MomentSpec> all_specs(Moment moment, std::int64_t rows, std::int64_t columns) {
  std::vector<MomentSpec> list;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const std::int64_t block : {0, 32, 2048}) {
      if (block != 0 && !has_blocks(format)) continue;
      list.push_back({moment, format, block, rows * columns, {rows, columns}, 2});
    }
  }
  return list;
}

TEST(Convert, EqualsDecodeThenEncode) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const Moment moment : {Moment::first, Moment::second}) {
      for (const MomentSpec& from : all_specs(moment, 61, 83)) {
        auto values = spread_values(from.numel, 31);
        if (moment == Moment::second) make_second_moment(values);
        values[100] = NAN;
        const EncodedBuffers source = encode(from, values);
        for (const MomentSpec& to : all_specs(moment, 61, 83)) {
          const EncodedBuffers expected = encode(to, decode(from, source));
          const EncodedBuffers got = make_buffers(to);
          const octavo::Status status = octavo::convert(from, source.code_span(), source.scale_span(), to,
                                                        got.code_span(), got.scale_span());
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_TRUE(got.codes.surroundings_intact() && got.scales.surroundings_intact());
          ASSERT_TRUE(std::ranges::equal(got.codes.bytes(), expected.codes.bytes()))
              << implementation << ", " << name_of(from) << " to " << name_of(to);
          ASSERT_TRUE(std::ranges::equal(got.scales.bytes(), expected.scales.bytes()))
              << implementation << ", " << name_of(from) << " to " << name_of(to);
        }
      }
    }
  }
}

TEST(Convert, ThroughFp32AndBackKeepsTheCodes) {
  for (const Moment moment : {Moment::first, Moment::second}) {
    const MomentSpec wide{moment, StateFormat::fp32, 0, 1000, {}, 0};
    const MomentSpec narrow{moment, StateFormat::int8, 0, 1000, {}, 0};
    auto values = spread_values(1000, 33);
    for (std::size_t block = 0; block < 1000; block += 256)
      values[block] = 9.0f;  // +1.0 is in the map, -1.0 is not
    if (moment == Moment::second) make_second_moment(values);
    const EncodedBuffers source = encode(narrow, values);
    const EncodedBuffers middle = make_buffers(wide);
    const EncodedBuffers back = make_buffers(narrow);
    ASSERT_TRUE(
        octavo::convert(narrow, source.code_span(), source.scale_span(), wide, middle.code_span(), {}).ok());
    ASSERT_TRUE(
        octavo::convert(wide, middle.code_span(), {}, narrow, back.code_span(), back.scale_span()).ok());
    EXPECT_TRUE(std::ranges::equal(source.codes.bytes(), back.codes.bytes()));
    EXPECT_TRUE(std::ranges::equal(source.scales.bytes(), back.scales.bytes()));
  }
}

TEST(Inspect, CountsWhatAPlainLoopCounts) {
  for (const Moment moment : {Moment::first, Moment::second}) {
    for (const MomentSpec& spec : all_specs(moment, 61, 83)) {
      auto values = spread_values(spec.numel, 41, 40);
      if (moment == Moment::second) make_second_moment(values);
      const EncodedBuffers encoded = encode(spec, values);
      const std::vector<float> decoded = decode(spec, encoded);
      double max_error = 0.0, error = 0.0, norm = 0.0;
      std::int64_t zeros = 0, lost = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double difference = static_cast<double>(decoded[i]) - static_cast<double>(values[i]);
        max_error = std::max(max_error, std::fabs(difference));
        error += difference * difference;
        norm += static_cast<double>(values[i]) * static_cast<double>(values[i]);
        zeros += decoded[i] == 0.0f;
        lost += decoded[i] == 0.0f && values[i] != 0.0f;
      }
      const auto report = octavo::inspect(spec, encoded.code_span(), encoded.scale_span(), values).value();
      EXPECT_EQ(report.bytes, encoded.codes.size() + encoded.scales.size()) << name_of(spec);
      EXPECT_EQ(report.max_error, max_error) << name_of(spec);
      // Sums of n positive terms in any order agree to n * 2^-53 relative, and the root halves that.
      const double expected = std::sqrt(error / norm);
      EXPECT_NEAR(report.relative_error, expected, expected * static_cast<double>(spec.numel) * 0x1p-52);
      EXPECT_EQ(report.zeros, zeros) << name_of(spec);
      EXPECT_EQ(report.lost, lost) << name_of(spec);
      EXPECT_EQ(report.nonfinite, 0) << name_of(spec);
    }
  }
}

TEST(Inspect, SaturationAndNonFinite) {
  const MomentSpec spec{Moment::second, StateFormat::int8, 32, 96, {}, 0};
  std::vector<float> values(96, 0.5f);
  values[3] = values[9] = 1.0f;                 // two elements on code 255 of the first block
  std::fill_n(values.begin() + 32, 32, 0.25f);  // all elements of the block are its maximum
  values[70] = NAN;                             // all elements of the block are NaN
  const EncodedBuffers encoded = encode(spec, values);
  const auto report = octavo::inspect(spec, encoded.code_span(), encoded.scale_span(), {}).value();
  EXPECT_EQ(report.saturated, 2 + 32);
  EXPECT_EQ(report.nonfinite, 32);
  EXPECT_EQ(report.max_error, 0.0);
  EXPECT_EQ(report.relative_error, 0.0);
}

}  // namespace
}  // namespace test
