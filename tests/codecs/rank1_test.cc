// Tests 4bit-rank1, whose scale of an element is the smallest of its per-axis maxima, on shapes of any rank:
// against loops over the axes by the paper's definition, and against the reference.
// SPDX-License-Identifier: MIT
#include "tests/support/moment.h"
#include "tests/support/random.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace test {
namespace {

using octavo::Moment;
using octavo::MomentSpec;
using octavo::StateFormat;

MomentSpec rank1_spec(std::initializer_list<std::int64_t> shape, Moment moment = Moment::second) {
  MomentSpec spec{moment, StateFormat::int4_rank1, 0, 1, {}, static_cast<int>(shape.size())};
  std::copy(shape.begin(), shape.end(), spec.shape.begin());
  for (const std::int64_t extent : shape) spec.numel *= extent;
  return spec;
}

std::vector<float> variances(const MomentSpec& spec, std::uint64_t seed) {
  std::vector<float> values = spread_values(spec.numel, seed, 10);
  make_second_moment(values);
  return values;
}

std::vector<MomentSpec> shapes() {
  return {rank1_spec({1024, 1, 9}),
          rank1_spec({3, 4, 5, 6}),
          rank1_spec({64, 33}),
          rank1_spec({1, 1}),
          rank1_spec({1, 77}),
          rank1_spec({77, 1}),
          rank1_spec({2, 1, 3, 1, 2, 1, 3, 5})};
}

TEST(Rank1, EncodeAndDecodeEqualReference) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const MomentSpec& spec : shapes()) {
      const auto values = variances(spec, 5);
      ASSERT_EQ(encode_difference(spec, values), "") << implementation << ", " << name_of(spec);
      ASSERT_EQ(decode_difference(spec, encode(spec, values)), "") << implementation << ", " << name_of(spec);
    }
  }
}

// The paper's definition: mu_r[j] = max over the slice with index j on axis r; scale = min over r of
// mu_r[i_r]; code = the nearest of 1/16 ... 16/16 to x / scale. Four loops, no flattening.
TEST(Rank1, FourDimensionsByThePapersDefinition) {
  constexpr int kA = 5, kB = 3, kC = 4, kD = 6;
  const MomentSpec spec = rank1_spec({kA, kB, kC, kD});
  const auto values = variances(spec, 6);
  const auto at = [&](int a, int b, int c, int d) {
    return values[static_cast<std::size_t>(((a * kB + b) * kC + c) * kD + d)];
  };
  std::vector<float> mu_a(kA), mu_b(kB), mu_c(kC), mu_d(kD);
  const auto every_element = [&](auto visit) {
    for (int a = 0; a < kA; ++a)
      for (int b = 0; b < kB; ++b)
        for (int c = 0; c < kC; ++c)
          for (int d = 0; d < kD; ++d)
            visit(static_cast<std::size_t>(a), static_cast<std::size_t>(b), static_cast<std::size_t>(c),
                  static_cast<std::size_t>(d), at(a, b, c, d));
  };
  every_element([&](auto a, auto b, auto c, auto d, float x) {
    mu_a[a] = std::max(mu_a[a], x);
    mu_b[b] = std::max(mu_b[b], x);
    mu_c[c] = std::max(mu_c[c], x);
    mu_d[d] = std::max(mu_d[d], x);
  });
  const EncodedBuffers encoded = encode(spec, values);
  std::vector<float> expected_scales;
  for (const auto* mu : {&mu_a, &mu_b, &mu_c, &mu_d})
    expected_scales.insert(expected_scales.end(), mu->begin(), mu->end());
  ASSERT_TRUE(std::equal(expected_scales.begin(), expected_scales.end(), encoded.scale_span().begin(),
                         encoded.scale_span().end()));
  std::size_t index = 0;
  every_element([&](auto a, auto b, auto c, auto d, float x) {
    const double scale = std::min({mu_a[a], mu_b[b], mu_c[c], mu_d[d]});
    const double steps = 16.0 * static_cast<double>(x) / scale;  // code + 1, before rounding
    const int code =
        index % 2 == 0 ? encoded.code_bytes()[index / 2] >> 4 : encoded.code_bytes()[index / 2] & 15;
    if (x == 0.0f) {
      EXPECT_EQ(code, 0);
    } else {
      // The bound is half a step and the error of two fp32 roundings of a number up to 16.
      EXPECT_LE(std::fabs(std::clamp(steps, 1.0, 16.0) - (code + 1)), 0.5 + 32.0 * 0x1p-24) << index;
    }
    ++index;
  });
}

TEST(Rank1, FirstMomentAndVectorsAreBlockwise) {
  MomentSpec matrix = rank1_spec({40, 25}, Moment::first);
  MomentSpec vector = rank1_spec({1000}, Moment::second);
  MomentSpec shapeless = vector;
  shapeless.ndim = 0;
  for (const MomentSpec& spec : {matrix, vector, shapeless}) {
    auto values = spread_values(1000, 8);
    if (spec.moment == Moment::second) make_second_moment(values);
    MomentSpec blockwise = spec;
    blockwise.format = StateFormat::int4;
    const EncodedBuffers a = encode(spec, values);
    const EncodedBuffers b = encode(blockwise, values);
    EXPECT_TRUE(std::ranges::equal(a.codes.bytes(), b.codes.bytes()));
    EXPECT_TRUE(std::ranges::equal(a.scales.bytes(), b.scales.bytes()));
  }
}

TEST(Rank1, SpecialValues) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const MomentSpec& spec : shapes()) {
      const auto ordinary = variances(spec, 9);
      const auto middle = static_cast<std::size_t>(spec.numel / 2);
      for (const float special : {NAN, INFINITY, 0x1p-149f, 3.4e38f}) {
        auto values = ordinary;
        values[middle] = special;
        ASSERT_EQ(encode_difference(spec, values), "")
            << implementation << ", " << name_of(spec) << " " << special;
        ASSERT_EQ(decode_difference(spec, encode(spec, values)), "")
            << implementation << ", " << name_of(spec);
      }
      auto denormal = ordinary;
      for (float& value : denormal) value *= 0x1p-130f;
      ASSERT_EQ(encode_difference(spec, denormal), "") << implementation << ", " << name_of(spec);
      ASSERT_EQ(decode_difference(spec, encode(spec, denormal)), "")
          << implementation << ", " << name_of(spec);
      auto zero_row = ordinary;
      std::fill_n(zero_row.begin(), spec.numel / spec.shape[0], 0.0f);
      ASSERT_EQ(encode_difference(spec, zero_row), "") << implementation << ", " << name_of(spec);
    }
  }
}

TEST(Rank1, EmptyShapes) {
  for (const MomentSpec& spec : {rank1_spec({0, 5}), rank1_spec({5, 0}), rank1_spec({2, 0, 3})}) {
    EXPECT_EQ(encode_difference(spec, {}), "");
    EXPECT_TRUE(decode(spec, make_buffers(spec)).empty());
  }
}

}  // namespace
}  // namespace test
