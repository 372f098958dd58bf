// Tests the boundaries between codes: for every map, the float nearest to each midpoint and three floats on
// each side are compared with a search by exact distance. Every code is also found from its own value.
// SPDX-License-Identifier: MIT
#include "tests/reference/minifloat.h"
#include "tests/support/moment.h"

#include <octavo/formats.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace test {
namespace {

using octavo::Moment;
using octavo::MomentSpec;
using octavo::StateFormat;

struct Grid {
  MomentSpec spec;
  std::vector<float> values;  // by code; NaN for a code that the search skips
  float largest = 1.0f;       // a block with this maximum has scale 1
};

Grid grid_of(StateFormat format, Moment moment) {
  Grid grid{{moment, format, 4096, 0, {}, 0}, {}, 1.0f};
  if (format == StateFormat::int8) {
    const auto& map = reference::map_8bit(moment);
    grid.values.assign(map.begin(), map.end());
  } else if (format == StateFormat::int4) {
    const auto& map = reference::map_4bit(moment);
    grid.values.assign(map.begin(), map.end());
  } else if (reference::is_small_float(format)) {
    const auto& map = reference::map_small_float(format, moment);
    grid.values.assign(map.begin(), map.end());
    if (moment == Moment::first) grid.values[map.size() / 2] = NAN;  // -0 is not searched
    grid.largest = *std::max_element(map.begin(), map.end());
  } else {
    const auto& fp8 = format == StateFormat::fp8_e4m3 ? reference::kE4M3 : reference::kE5M2;
    grid.largest = static_cast<float>(fp8.max_finite);
    for (std::uint32_t code = 0; code < 256; ++code) {
      const double value = fp8.value(code);
      const bool searched = std::isfinite(value) && code != 0x80;
      grid.values.push_back(searched ? static_cast<float>(value) : NAN);
    }
  }
  return grid;
}

std::vector<Grid> grids() {
  std::vector<Grid> list;
  for (const StateFormat format : {StateFormat::int8, StateFormat::int4, StateFormat::fp8_e4m3,
                                   StateFormat::fp8_e5m2, StateFormat::fp4, StateFormat::fp3}) {
    list.push_back(grid_of(format, Moment::first));
    list.push_back(grid_of(format, Moment::second));
  }
  return list;
}

bool is_fp8(const Grid& grid) {
  return grid.spec.format == StateFormat::fp8_e4m3 || grid.spec.format == StateFormat::fp8_e5m2;
}

// The nearest code by exact distance. long double holds every difference of these values exactly.
int nearest_by_distance(const Grid& grid, float x) {
  // The format rounds magnitudes below 1 to multiples of 2^-23 first.
  if (reference::is_small_float(grid.spec.format) && grid.spec.moment == Moment::first && std::fabs(x) < 1.0f)
    x = std::copysign(std::fabs(x) + 1.0f - 1.0f, x);
  int best = -1;
  long double best_distance = 0;
  for (int code = 0; code < static_cast<int>(grid.values.size()); ++code) {
    const float value = grid.values[static_cast<std::size_t>(code)];
    if (std::isnan(value)) continue;
    const long double distance = std::fabs(static_cast<long double>(x) - static_cast<long double>(value));
    bool take = best < 0 || distance < best_distance;
    if (!take && distance == best_distance) {
      const bool smaller = std::fabs(value) < std::fabs(grid.values[static_cast<std::size_t>(best)]);
      take = is_fp8(grid) ? code % 2 == 0 : smaller;
    }
    if (take) {
      best = code;
      best_distance = distance;
    }
  }
  const bool zero = grid.values[static_cast<std::size_t>(best)] == 0.0f;
  return zero && x > 0.0f && grid.spec.moment == Moment::second ? best + 1 : best;
}

std::vector<float> around_midpoints(const Grid& grid) {
  std::vector<float> sorted;
  for (const float value : grid.values) {
    if (std::isnan(value) || (grid.spec.moment == Moment::second && value < 0.0f)) continue;
    sorted.push_back(value);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<float> points;
  for (std::size_t i = 0; i + 1 < sorted.size(); ++i) {
    const double middle = (static_cast<double>(sorted[i]) + static_cast<double>(sorted[i + 1])) / 2.0;
    float x = static_cast<float>(middle);
    for (int ulp = 0; ulp < 3; ++ulp) x = std::nextafter(x, -INFINITY);
    for (int ulp = -3; ulp <= 3; ++ulp) {
      if (grid.spec.moment == Moment::first || x >= 0.0f) points.push_back(x);
      x = std::nextafter(x, INFINITY);
    }
    points.push_back(sorted[i]);
  }
  return points;
}

int code_at(const Grid& grid, const EncodedBuffers& encoded, std::size_t i) {
  const auto codes = encoded.code_bytes();
  const auto bits = static_cast<std::size_t>(
      octavo::describe(grid.spec.format)->moment[static_cast<std::size_t>(grid.spec.moment)].bits);
  int code = 0;
  for (std::size_t at = i * bits; at < (i + 1) * bits; ++at)
    code = 2 * code + ((codes[at / 8] >> (7 - at % 8)) & 1);
  return code;
}

TEST(Boundary, NearestCodeWithinThreeUlpOfEveryMidpoint) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (Grid grid : grids()) {
      for (const int exponent : {0, -20, 40}) {  // a power of two scales a block without rounding
        std::vector<float> values = around_midpoints(grid);
        const std::vector<float> points = values;
        ASSERT_LT(values.size(), 4096u);
        values.push_back(grid.largest);
        for (float& value : values) value = std::ldexp(value, exponent);
        grid.spec.numel = static_cast<std::int64_t>(values.size());
        const EncodedBuffers encoded = encode(grid.spec, values);
        ASSERT_EQ(encoded.scale_span()[0], std::ldexp(1.0f, exponent));
        for (std::size_t i = 0; i < points.size(); ++i) {
          int expected = nearest_by_distance(grid, points[i]);
          const bool fp8 =
              grid.spec.format == StateFormat::fp8_e4m3 || grid.spec.format == StateFormat::fp8_e5m2;
          const bool keeps_sign = fp8 || reference::is_small_float(grid.spec.format);  // of zero
          if (keeps_sign && expected == 0 && std::signbit(points[i]))
            expected = static_cast<int>(grid.values.size()) / 2;
          ASSERT_EQ(code_at(grid, encoded, i), expected)
              << implementation << ", " << name_of(grid.spec) << ", x = " << std::hexfloat << points[i];
        }
      }
    }
  }
}

TEST(Boundary, EveryCodeReturnsFromItsValue) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (Grid grid : grids()) {
      for (const float scale : {1.0f, 0x1p-120f, 0x1p100f, 3.7e-5f, 1e-30f, 2.9e33f}) {
        const auto is_power = [](float x) { return std::ldexp(1.0f, std::ilogb(x)) == x; };
        if (!is_power(grid.largest) && !is_power(scale)) continue;  // for example a / 448 would round
        std::vector<float> values;
        std::vector<int> codes;
        for (int code = 0; code < static_cast<int>(grid.values.size()); ++code) {
          const float value = grid.values[static_cast<std::size_t>(code)];
          if (std::isnan(value) || (grid.spec.moment == Moment::second && value < 0.0f)) continue;
          values.push_back(value * scale);
          codes.push_back(code);
        }
        grid.spec.numel = static_cast<std::int64_t>(values.size());
        const EncodedBuffers encoded = encode(grid.spec, values);
        const std::vector<float> decoded = decode(grid.spec, encoded);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(code_at(grid, encoded, i), codes[i])
              << implementation << ", " << name_of(grid.spec) << " " << scale;
          ASSERT_EQ(reference::bits_of(decoded[i]), reference::bits_of(values[i])) << name_of(grid.spec);
        }
      }
    }
  }
}

std::vector<std::uint8_t> codes_by(const std::string& implementation, const Grid& grid,
                                   const std::vector<float>& values) {
  const ForcedImplementation forced(implementation);
  const EncodedBuffers encoded = encode(grid.spec, values);
  return {encoded.code_bytes().begin(), encoded.code_bytes().end()};
}

// Checks that all implementations give the codes of the scalar one, which looks them up. Signs alternate.
testing::AssertionResult same_codes(Grid grid, std::vector<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 4096 == 0) values[i] = 1.0f;  // the block's scale
    values[i] *= i % 2 == 1 && grid.spec.moment == Moment::first ? -grid.largest : grid.largest;
  }
  grid.spec.numel = static_cast<std::int64_t>(values.size());
  const std::vector<std::uint8_t> expected = codes_by("scalar", grid, values);
  for (const std::string& implementation : supported_implementations()) {
    const std::vector<std::uint8_t> codes = codes_by(implementation, grid, values);
    const auto at = std::mismatch(expected.begin(), expected.end(), codes.begin()).first - expected.begin();
    if (at == static_cast<std::ptrdiff_t>(expected.size())) continue;
    return testing::AssertionFailure() << implementation << ", " << name_of(grid.spec) << ", byte " << at;
  }
  return testing::AssertionSuccess();
}

// Tests every float from 1/8 to 1 (with OCTAVO_TEST_QUICK one in 61), and one in 61 from there down to 2^-30.
TEST(Boundary, EveryFloatHasTheScalarCode) {
  const std::uint32_t fine = std::getenv("OCTAVO_TEST_QUICK") != nullptr ? 61 : 1;
  const std::uint32_t middle = reference::bits_of(0x1p-3f);
  for (std::uint32_t b = reference::bits_of(0x1p-30f); b < reference::bits_of(1.0f);) {
    std::vector<float> values;
    for (; values.size() < 1U << 18 && b < reference::bits_of(1.0f); b += b < middle ? 61 : fine)
      values.push_back(reference::from_bits(b));
    for (const Grid& grid : grids())
      ASSERT_TRUE(same_codes(grid, values)) << "floats up to " << values.back();
  }
}

// Ties, their neighbours, infinities and NaN, over the full range of exponents.
TEST(Boundary, Bf16StateRoundsToNearestEven) {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000u; high += 37) {
    for (const std::uint32_t low : {0x0000u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      values.push_back(reference::from_bits((high << 16) | low));
    }
  }
  const MomentSpec spec{Moment::first, StateFormat::bf16, 0, static_cast<std::int64_t>(values.size()), {}, 0};
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    EXPECT_EQ(encode_difference(spec, values), "") << implementation;
  }
}

}  // namespace
}  // namespace test
