// Matmuls: exact numbers for every tiling, type and thread count; then whole layers against double, within
// an error that is derived, and with the signal-to-noise ratio that the formats promise.
// SPDX-License-Identifier: MIT
#include "tests/fp8/matrices.h"

#include <cmath>
#include <limits>
#include <string>

namespace test {
namespace {

using fp8::Element;
using fp8::Pass;
using fp8::Recipe;
using fp8::Tiling;
using octavo::DType;

constexpr float kInf = std::numeric_limits<float>::infinity();

fp8::MatmulArgs args_of(const Cast& a, const Cast& b, const Dense& to) {
  fp8::MatmulArgs args;
  args.a = a.matrix();
  args.b = b.matrix();
  args.to = to.data.data();
  args.dtype = to.dtype;
  return args;
}

// Codes of small integers, and scales that are powers of two: every sum is exact in fp32.
Cast integers(Element element, Tiling tiling, std::int64_t rows, std::int64_t inner, std::uint64_t seed) {
  Cast out(element, tiling, rows, inner);
  Random random(seed);
  for (std::int64_t i = 0; i < rows * inner; ++i) {
    const auto value = static_cast<double>(random.below(5));
    out.codes.as<std::uint8_t>()[i] =
        static_cast<std::uint8_t>(definition(element).code_of(value) | (random.chance(2) ? 0x80u : 0u));
  }
  for (std::int64_t i = 0; i < out.inverse.size() / 4; ++i)
    out.inverse.as<float>()[i] = std::ldexp(1.0f, static_cast<int>(random.below(5)) - 2);
  return out;
}

std::vector<double> values_of(const Cast& cast) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < cast.rows; ++i) {
    for (std::int64_t k = 0; k < cast.inner; ++k) values.push_back(cast.value(i, k));
  }
  return values;
}

TEST(Fp8Matmul, IsExactWhereNumbersAre) {
  const std::pair<Tiling, Tiling> pairs[] = {{Tiling::tensor, Tiling::tensor},
                                             {Tiling::row, Tiling::row},
                                             {Tiling::tile_1x128, Tiling::tile_1x128},
                                             {Tiling::tile_1x128, Tiling::tile_128x128},
                                             {Tiling::tile_128x128, Tiling::tile_1x128}};
  constexpr std::int64_t kRows = 80, kColumns = 144, kInner = 272;
  for (const auto& [left, right] : pairs) {
    for (const Element element : kElements) {
      const Cast a = integers(element, left, kRows, kInner, 1);
      const Cast b = integers(Element::e4m3, right, kColumns, kInner, 2);
      const std::vector<double> av = values_of(a), bv = values_of(b);
      std::vector<double> exact(kRows * kColumns);
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t j = 0; j < kColumns; ++j) {
          double sum = 0.0;
          for (std::int64_t k = 0; k < kInner; ++k)
            sum +=
                av[static_cast<std::size_t>(i * kInner + k)] * bv[static_cast<std::size_t>(j * kInner + k)];
          exact[static_cast<std::size_t>(i * kColumns + j)] = sum;
        }
      }
      for (const DType dtype : octavo::all_dtypes()) {
        for (const bool add : {false, true}) {
          Dense expected(dtype, kRows, kColumns);
          for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
            const double sum = exact[static_cast<std::size_t>(i)] + (add ? 3.0 : 0.0);
            reference::store_nearest(dtype, expected.data.data(), i, static_cast<float>(sum));
          }
          for (const int threads : {1, 3}) {
            const Dense to(dtype, kRows, kColumns, std::vector<float>(kRows * kColumns, 3.0f));
            fp8::MatmulArgs args = args_of(a, b, to);
            args.add = add;
            args.threads = threads;
            ASSERT_TRUE(fp8::matmul(args).ok());
            EXPECT_TRUE(to.data.surroundings_intact());
            for (std::int64_t i = 0; i < kRows; ++i) {
              for (std::int64_t j = 0; j < kColumns; ++j)
                ASSERT_EQ(to.at(i, j), expected.at(i, j))
                    << name(left) << ' ' << name(right) << ' ' << i << ' ' << j;
            }
          }
        }
      }
    }
  }
}

TEST(Fp8Matmul, OfNoTermsIsZero) {
  const Cast a(Element::e4m3, Tiling::row, 16, 0), b(Element::e4m3, Tiling::row, 32, 0);
  Dense to(DType::f32, 16, 32, std::vector<float>(512, 3.0f));
  fp8::MatmulArgs args = args_of(a, b, to);
  args.add = true;
  ASSERT_TRUE(fp8::matmul(args).ok());
  EXPECT_EQ(to.at(15, 31), 3.0f);
  args.add = false;
  ASSERT_TRUE(fp8::matmul(args).ok());
  EXPECT_EQ(to.at(15, 31), 0.0f);
}

// Two scales whose product is no float.
TEST(Fp8Matmul, ScalesDoNotOverflowTogether) {
  Cast a = integers(Element::e4m3, Tiling::tensor, 16, 16, 1),
       b = integers(Element::e4m3, Tiling::tensor, 16, 16, 2);
  Dense plain(DType::f32, 16, 16), scaled(DType::f32, 16, 16);
  *a.inverse.as<float>() = *b.inverse.as<float>() = 1.0f;
  ASSERT_TRUE(fp8::matmul(args_of(a, b, plain)).ok());
  *a.inverse.as<float>() = 0x1p127f;
  *b.inverse.as<float>() = 0x1p-127f;
  ASSERT_TRUE(fp8::matmul(args_of(a, b, scaled)).ok());
  EXPECT_TRUE(std::ranges::equal(plain.data.bytes(), scaled.data.bytes()));
}

// --- layers ---

enum class Kind { random, outliers, zeros };

// One in 500 elements is an outlier, 4,096 times as large.
Dense tensor(Kind kind, std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (float& value : values) {
    value = kind == Kind::zeros ? 0.0f : random.gaussian();
    if (kind == Kind::outliers && random.chance(500)) value *= 4096.0f;
  }
  return {DType::bf16, rows, columns, values};
}

constexpr std::int64_t kTokens = 144, kInputs = 160, kOutputs = 144;

struct Layer {
  Dense x, w, dy;
  explicit Layer(Kind kind)
      : x(tensor(kind, kTokens, kInputs, 1)),
        w(tensor(kind == Kind::zeros ? kind : Kind::random, kOutputs, kInputs, 2)),
        dy(tensor(kind, kTokens, kOutputs, 3)) {}
  [[nodiscard]] const Dense& of(fp8::Operand operand) const {
    return operand == fp8::Operand::x ? x : operand == fp8::Operand::w ? w : dy;
  }
};

// An operand of a matmul before its cast.
double before(const Dense& from, const fp8::Use& use, std::int64_t i, std::int64_t k) {
  return static_cast<double>(use.transposed ? from.at(k, i) : from.at(i, k));
}

// How far a cast moves an element that is not beyond the largest number: half a unit of its last place, which
// is at most 2^-(mantissa + 1) of it, or half of the subnormals' unit; and 2^-24 of it for each of the
// rounded product with the scale, the rounded scale and its rounded inverse.
double cast_error(const Cast& cast, std::int64_t i, std::int64_t k, double x) {
  const reference::Minifloat& f = definition(cast.element);
  const double relative = std::ldexp(1.0, -f.mantissa_bits - 1) + 4 * 0x1p-24;
  const double unit = std::ldexp(1.0, 1 - f.bias() - f.mantissa_bits);
  return relative * std::fabs(x) + 0.5 * unit * static_cast<double>(cast.inverse_at(i, k));
}

// A matmul of a layer, against double. The error of a term is that of both casts; sums have one rounding of
// 2^-24 for each of their terms and up to 8 for scales and tiles; bf16 results one of 2^-9.
// Returns the signal-to-noise ratio in dB.
double expect_near(const Layer& layer, Recipe recipe, fp8::Format format, Pass pass,
                   const std::string& what) {
  const fp8::Uses uses = fp8::uses(format, pass);
  const Dense &a_from = layer.of(uses.a.operand), &b_from = layer.of(uses.b.operand);
  const Cast a = cast(a_from, recipe, uses.a), b = cast(b_from, recipe, uses.b);
  Dense to(DType::bf16, a.rows, b.rows);
  EXPECT_TRUE(fp8::matmul(args_of(a, b, to)).ok());

  const auto expand = [](const Dense& from, const fp8::Use& use, const Cast& cast, std::vector<double>& value,
                         std::vector<double>& error) {
    for (std::int64_t i = 0; i < cast.rows; ++i) {
      for (std::int64_t k = 0; k < cast.inner; ++k) {
        value.push_back(before(from, use, i, k));
        error.push_back(cast_error(cast, i, k, value.back()));
      }
    }
  };
  std::vector<double> av, ae, bv, be;
  expand(a_from, uses.a, a, av, ae);
  expand(b_from, uses.b, b, bv, be);
  double signal = 0.0, noise = 0.0;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.rows; ++j) {
      double exact = 0.0, error = 0.0, absolute = 0.0;
      for (std::int64_t k = 0; k < a.inner; ++k) {
        const auto p = static_cast<std::size_t>(i * a.inner + k),
                   q = static_cast<std::size_t>(j * a.inner + k);
        const double plain = std::fabs(av[p] * bv[q]);
        const double most = (std::fabs(av[p]) + ae[p]) * (std::fabs(bv[q]) + be[q]);
        exact += av[p] * bv[q];
        error += most - plain;
        absolute += most;
      }
      const double got = static_cast<double>(to.at(i, j));
      const double sums = static_cast<double>(a.inner + 8) * 0x1p-24 * absolute;
      const double bound = error + sums + (std::fabs(exact) + error + sums) * 0x1p-9;
      EXPECT_LE(std::fabs(got - exact), bound) << what << ' ' << i << ' ' << j;
      if (testing::Test::HasFailure()) return 0.0;
      signal += exact * exact;
      noise += (got - exact) * (got - exact);
    }
  }
  return 10.0 * std::log10(signal / noise);
}

// The signal-to-noise ratio that the elements promise, in dB. A cast moves x by an error that is even in ±
// half a unit, at most h = 2^-(mantissa + 1) of x: relative to x its power is at most h^2 / 3. The errors of
// two operands are independent, so their powers add; that of bf16 is 2^-18 / 3. Where few outliers make a
// result, nothing is averaged: the error of a term is then at most (1 + h)(1 + h') - 1 of it.
double promised(const fp8::Uses& uses, Kind kind) {
  const auto h = [](Element element) { return std::ldexp(1.0, -definition(element).mantissa_bits - 1); };
  const double a = h(uses.a.element), b = h(uses.b.element);
  const double single = (1.0 + a) * (1.0 + b) - 1.0;
  const double power = kind == Kind::outliers ? single * single : (a * a + b * b) / 3.0;
  return -10.0 * std::log10(power + 0x1p-18 / 3.0);
}

TEST(Fp8Matmul, LayersAreWithinTheErrorOfTheFormats) {
  for (const Kind kind : {Kind::random, Kind::outliers, Kind::zeros}) {
    const Layer layer(kind);
    for (const Recipe recipe : kRecipes) {
      for (const fp8::Format format : kFormats) {
        for (const Pass pass : kPasses) {
          const std::string what = std::string(name(recipe)) + ' ' + std::string(name(format)) + ' ' +
                                   std::string(name(pass)) + ' ' + std::to_string(static_cast<int>(kind));
          const double ratio = expect_near(layer, recipe, format, pass, what);
          ASSERT_FALSE(HasFailure());
          if (kind == Kind::zeros) continue;
          EXPECT_GE(ratio, promised(fp8::uses(format, pass), kind)) << what;
        }
      }
    }
  }
}

// A number that is none must reach the gradients' check, whatever a cast does with it.
TEST(Fp8Matmul, InfinitiesAndNanReachEveryResultThatUsesThem) {
  for (const float bad : {kInf, -kInf, NAN}) {
    for (const DType dtype : octavo::all_dtypes()) {
      for (const Recipe recipe : kRecipes) {
        for (const fp8::Format format : kFormats) {
          for (const Pass pass : kPasses) {
            const fp8::Uses uses = fp8::uses(format, pass);
            for (const bool left : {true, false}) {
              std::vector<float> values(32 * 32, 1.0f), bad_values = values;
              bad_values[5 * 32 + 5] = bad;
              const Dense good(dtype, 32, 32, values), poor(dtype, 32, 32, bad_values);
              const Cast a = cast(left ? poor : good, recipe, uses.a);
              const Cast b = cast(left ? good : poor, recipe, uses.b);
              Dense to(DType::bf16, 32, 32);
              ASSERT_TRUE(fp8::matmul(args_of(a, b, to)).ok());
              for (std::int64_t n = 0; n < 32; ++n) {
                const float reached = left ? to.at(5, n) : to.at(n, 5);
                EXPECT_FALSE(std::isfinite(reached)) << name(recipe) << ' ' << name(pass) << ' ' << bad;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace test
