// Casts: every code, every half, and floats around every boundary against a search by distance in double;
// what is beyond the ends; both matrices of codes; maxima; sums over rows.
// SPDX-License-Identifier: MIT
#include "tests/fp8/matrices.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace test {
namespace {

using fp8::Element;
using fp8::Recipe;
using octavo::DType;

constexpr float kInf = std::numeric_limits<float>::infinity();

// The codes of a row of values as they are, with scale 1.
std::vector<std::uint8_t> codes_of(Element element, const Dense& row) {
  Cast out(element, fp8::Tiling::tensor, row.rows, row.columns);
  const float one = 1.0f;
  fp8::CastArgs args = args_of(row, Recipe::delayed);
  args.by_rows = out.out(&one);
  EXPECT_TRUE(fp8::cast(args).ok());
  const auto* codes = out.codes.as<std::uint8_t>();
  return {codes, codes + row.columns};
}

// The nearest of all finite values by distance; of two, the one with the even code. Everything is exact.
class Search {
 public:
  explicit Search(Element element) {
    for (std::uint32_t code = 0; code < 128; ++code) {
      const double value = definition(element).value(code);
      if (std::isfinite(value)) values_.push_back(value);
    }
  }
  [[nodiscard]] std::uint8_t operator()(float x) const {
    if (std::isnan(x)) return 0x7F;
    const double magnitude = std::min(std::fabs(static_cast<double>(x)), 2.0 * values_.back());
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude) - values_.begin();
    auto best = static_cast<std::size_t>(std::min<std::ptrdiff_t>(above, std::ssize(values_) - 1));
    if (best > 0) {
      const double up = std::fabs(values_[best] - magnitude), down = std::fabs(magnitude - values_[best - 1]);
      if (down < up || (down == up && best % 2 == 1)) --best;
    }
    return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80u : 0u));
  }
  [[nodiscard]] const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
};

void expect_nearest(Element element, DType dtype, const std::vector<float>& values) {
  const Search nearest(element);
  const Dense row(dtype, 1, static_cast<std::int64_t>(values.size()), values);
  const std::vector<std::uint8_t> codes = codes_of(element, row);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(codes[i], nearest(row.at(0, static_cast<std::int64_t>(i))))
        << name(element) << ' ' << std::hexfloat << values[i];
  }
}

TEST(Fp8Cast, EveryCodeHasItsValue) {
  for (const Element element : kElements) {
    for (std::uint32_t code = 0; code < 256; ++code) {
      const float value = fp8::value(element, static_cast<std::uint8_t>(code));
      const double expected = definition(element).value(code);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << code;
      } else {
        EXPECT_EQ(static_cast<double>(value), expected) << code;
        EXPECT_EQ(std::signbit(value), code >= 128) << code;
      }
    }
    EXPECT_EQ(static_cast<double>(fp8::largest(element)), definition(element).max_finite);
  }
}

TEST(Fp8Cast, EveryCodeReturnsFromItsValue) {
  for (const Element element : kElements) {
    std::vector<float> values;
    std::vector<std::uint8_t> expected;
    for (std::uint32_t code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      if (!std::isfinite(fp8::value(element, byte))) continue;
      values.push_back(fp8::value(element, byte));
      expected.push_back(byte);
    }
    EXPECT_EQ(codes_of(element, Dense(DType::f32, 1, std::ssize(values), values)), expected);
  }
}

TEST(Fp8Cast, EveryHalfIsTheNearestCode) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Dense all(dtype, 1, 65536);
    for (std::uint32_t i = 0; i < 65536; ++i) all.data.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
    for (const Element element : kElements) {
      const Search nearest(element);
      const auto codes = codes_of(element, all);
      for (std::int64_t i = 0; i < 65536; ++i)
        ASSERT_EQ(codes[static_cast<std::size_t>(i)], nearest(all.at(0, i))) << name(dtype) << ' ' << i;
    }
  }
}

TEST(Fp8Cast, FloatsAroundEveryBoundary) {
  for (const Element element : kElements) {
    const std::vector<double> grid = Search(element).values();
    std::vector<float> values = {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, kInf, -kInf, NAN, -NAN};
    const double beyond = 2.0 * grid.back() - grid[grid.size() - 2];
    for (std::size_t i = 0; i < grid.size(); ++i) {
      const double next = i + 1 < grid.size() ? grid[i + 1] : beyond;
      for (const double centre : {grid[i], (grid[i] + next) / 2.0}) {
        float x = static_cast<float>(centre);
        for (int ulp = 0; ulp < 3; ++ulp) x = std::nextafter(x, -kInf);
        for (int ulp = -3; ulp <= 3; ++ulp, x = std::nextafter(x, kInf)) {
          values.push_back(x);
          values.push_back(-x);
        }
      }
    }
    expect_nearest(element, DType::f32, values);
    expect_nearest(element, DType::f32, spread_values(200'000, 1, 40));
    expect_nearest(element, DType::f32, any_finite_values(200'000, 2));
  }
}

TEST(Fp8Cast, SaturatesInfinitiesAndKeepsNan) {
  const std::vector<float> values = {kInf, -kInf, 3e38f, -3e38f, NAN};
  const Dense row(DType::f32, 1, 5, values);
  EXPECT_EQ(codes_of(Element::e4m3, row), (std::vector<std::uint8_t>{0x7E, 0xFE, 0x7E, 0xFE, 0x7F}));
  EXPECT_EQ(codes_of(Element::e5m2, row), (std::vector<std::uint8_t>{0x7B, 0xFB, 0x7B, 0xFB, 0x7F}));
}

// The product with the scale is rounded to fp32 before the cast.
TEST(Fp8Cast, MultipliesByTheScaleInFp32) {
  const std::vector<float> values = any_finite_values(50'000, 3);
  const Dense row(DType::f32, 1, std::ssize(values), values);
  for (const float scale : {0.37f, 1234.5f, 0x1p-130f, 3e38f}) {
    Cast out(Element::e4m3, fp8::Tiling::tensor, 1, row.columns);
    fp8::CastArgs args = args_of(row, Recipe::delayed);
    args.by_rows = out.out(&scale);
    ASSERT_TRUE(fp8::cast(args).ok());
    const Search nearest(Element::e4m3);
    for (std::int64_t i = 0; i < row.columns; ++i)
      ASSERT_EQ(out.code(0, i), nearest(values[static_cast<std::size_t>(i)] * scale)) << scale << ' ' << i;
    EXPECT_EQ(out.inverse_at(0, 0), 1.0f / scale);
  }
}

// Sizes around those of tiles and paddings, by rows and transposed, in both elements at once.
TEST(Fp8Cast, TurnedCodesAreThoseOfTheTransposedMatrix) {
  const std::int64_t sizes[][2] = {{1, 1}, {16, 16}, {17, 130}, {127, 129}, {128, 128}, {300, 33}};
  for (const auto& [rows, columns] : sizes) {
    for (const DType dtype : octavo::all_dtypes()) {
      for (const Recipe recipe : kRecipes) {
        for (const fp8::Operand operand : {fp8::Operand::x, fp8::Operand::w}) {
          const std::vector<float> values = spread_values(rows * columns, 7);
          const Dense from(dtype, rows, columns, values);
          std::vector<float> transposed_values(values.size());
          for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t j = 0; j < columns; ++j)
              transposed_values[static_cast<std::size_t>(j * rows + i)] =
                  values[static_cast<std::size_t>(i * columns + j)];
          }
          const Dense transposed_from(dtype, columns, rows, transposed_values);
          const fp8::Tiling tiling = fp8::tiling(recipe, operand);
          Cast by_rows(Element::e5m2, tiling, rows, columns),
              transposed(Element::e4m3, tiling, columns, rows);
          const float first = 20.0f, second = 3.0f;
          fp8::CastArgs args = args_of(from, recipe, operand);
          args.by_rows = by_rows.out(&first);
          args.transposed = transposed.out(&second);
          args.threads = 2;
          ASSERT_TRUE(fp8::cast(args).ok());

          Cast alone(Element::e5m2, tiling, rows, columns), expected(Element::e4m3, tiling, columns, rows);
          fp8::CastArgs apart = args_of(from, recipe, operand);
          apart.by_rows = alone.out(&first);
          apart.threads = 1;
          ASSERT_TRUE(fp8::cast(apart).ok());
          apart = args_of(transposed_from, recipe, operand);
          apart.by_rows = expected.out(&second);
          ASSERT_TRUE(fp8::cast(apart).ok());
          const auto same = [](const Buffer& a, const Buffer& b) {
            return std::ranges::equal(a.bytes(), b.bytes());
          };
          EXPECT_TRUE(same(by_rows.codes, alone.codes) && same(by_rows.inverse, alone.inverse));
          EXPECT_TRUE(same(transposed.codes, expected.codes) && same(transposed.inverse, expected.inverse))
              << rows << " x " << columns << ' ' << name(recipe);
          for (const Buffer* buffer :
               {&by_rows.codes, &by_rows.inverse, &transposed.codes, &transposed.inverse})
            EXPECT_TRUE(buffer->surroundings_intact());
        }
      }
    }
  }
}

TEST(Fp8Cast, PaddingIsZeroAndInNoMaximum) {
  const Dense from(DType::f32, 3, 5, std::vector<float>(15, -1.75f));
  for (const Recipe recipe : kRecipes) {
    const Cast out = cast(from, recipe, {fp8::Operand::x, false, Element::e4m3});
    ASSERT_EQ(out.rows, 16);
    ASSERT_EQ(out.inner, 16);
    for (std::int64_t i = 0; i < 16; ++i) {
      for (std::int64_t k = 0; k < 16; ++k) {
        const bool inside = i < 3 && k < 5;
        EXPECT_EQ(out.value(i, k), inside ? -1.75 : 0.0) << name(recipe) << ' ' << i << ' ' << k;
        if (!inside) {
          EXPECT_EQ(out.code(i, k), 0);
        }
      }
    }
  }
}

TEST(Fp8Cast, AmaxIsRaisedAndLeavesNanOut) {
  std::vector<float> values = spread_values(200 * 300, 5);
  values[777] = -100.0f;
  values[3] = NAN;
  const Dense from(DType::bf16, 200, 300, values);
  for (const Recipe recipe : kRecipes) {
    for (const bool transposed : {false, true}) {
      const float one = 1.0f;
      Cast out(Element::e5m2, fp8::tiling(recipe, fp8::Operand::x), transposed ? 300 : 200,
               transposed ? 200 : 300);
      fp8::CastArgs args = args_of(from, recipe);
      (transposed ? args.transposed : args.by_rows) = out.out(&one);
      for (const float before : {0.0f, 99.0f, 101.0f, kInf}) {
        float amax = before;
        args.amax = &amax;
        ASSERT_TRUE(fp8::cast(args).ok());
        EXPECT_EQ(amax, std::max(before, 100.0f)) << name(recipe);
      }
    }
  }
}

// The tree, once more: halves of the largest power of two below the count.
float tree(const std::vector<float>& values, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return values[begin];
  std::size_t half = 1;
  while (2 * half < end - begin) half *= 2;
  return tree(values, begin, begin + half) + tree(values, begin + half, end);
}

TEST(Fp8Cast, SumsOverRowsAreATree) {
  for (const DType dtype : octavo::all_dtypes()) {
    for (const std::int64_t rows : {1, 2, 3, 7, 64, 100, 129}) {
      constexpr std::int64_t kColumns = 70;
      const Dense from(dtype, rows, kColumns, spread_values(rows * kColumns, 11));
      Cast out(Element::e5m2, fp8::Tiling::tensor, rows, kColumns);
      Buffer sums(4 * kColumns);
      const float one = 1.0f;
      fp8::CastArgs args = args_of(from, Recipe::delayed, fp8::Operand::dy);
      args.by_rows = out.out(&one);
      args.bias_grad = sums.as<float>();
      ASSERT_TRUE(fp8::cast(args).ok());
      EXPECT_TRUE(sums.surroundings_intact());
      for (std::int64_t j = 0; j < kColumns; ++j) {
        std::vector<float> column;
        for (std::int64_t i = 0; i < rows; ++i) column.push_back(from.at(i, j));
        ASSERT_EQ(reference::bits_of(sums.as<float>()[j]),
                  reference::bits_of(tree(column, 0, column.size()) + 0.0f))
            << rows << ' ' << j;
      }
    }
  }
}

}  // namespace
}  // namespace test
