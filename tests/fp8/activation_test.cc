// Activations that are cast along, against their definitions in double. One element's maximum is the fp32
// value before the cast; its code is that value's.
// SPDX-License-Identifier: MIT
#include "tests/fp8/matrices.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace test {
namespace {

using fp8::Activation;

// Returns the cast of x, with the sign of its code.
float activated(Activation activation, float x) {
  const Dense from(octavo::DType::f32, 1, 1, {x});
  Cast out(fp8::Element::e5m2, fp8::Tiling::tensor, 1, 1);
  const float one = 1.0f;
  float amax = 0.0f;
  fp8::CastArgs args = args_of(from, fp8::Recipe::delayed);
  args.activation = activation;
  args.by_rows = out.out(&one);
  args.amax = &amax;
  args.threads = 1;
  EXPECT_TRUE(fp8::cast(args).ok());
  if (out.code(0, 0) == 0x7F) return NAN;
  return std::copysign(amax, static_cast<float>(definition(out.element).value(out.code(0, 0))));
}

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }
double tanh_argument(double x) { return std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x); }

std::vector<float> inputs() {
  std::vector<float> values = {0.0f, -0.0f, 1.0f, -1.0f, 87.5f, -86.5f, 1e20f, 3e38f};
  for (const float x : spread_values(4000, 21, 20)) values.push_back(16.0f * x);
  return values;
}

TEST(Fp8Activation, Relu) {
  for (const float x : inputs()) EXPECT_EQ(activated(Activation::relu, x), x > 0.0f ? x : 0.0f) << x;
}

// In units of 2^-24 the argument z has 4 relative errors of one half (its factors, products and sum), which
// the exponential multiplies by |z|; the exponential itself has at most 4, its sum with 1 and the quotient a
// half each. Results below 2^-126 lose bits of their own.
double bound(double z, double result) {
  return (2.0 * std::fabs(z) + 5.0) * 0x1p-24 * std::fabs(result) + 0x1p-149;
}

TEST(Fp8Activation, Silu) {
  for (const float x : inputs()) {
    const double exact = static_cast<double>(x) * sigmoid(static_cast<double>(x));
    EXPECT_NEAR(static_cast<double>(activated(Activation::silu, x)), exact,
                bound(static_cast<double>(x), exact))
        << x;
  }
}

TEST(Fp8Activation, GeluIsTheFormWithTanh) {
  for (const float x : inputs()) {
    const double u = tanh_argument(static_cast<double>(x));
    if (2.0 * u < -87.0) continue;  // below
    const double exact = static_cast<double>(x) * sigmoid(2.0 * u);
    EXPECT_NEAR(static_cast<double>(activated(Activation::gelu, x)), exact, bound(2.0 * u, exact)) << x;
    if (std::fabs(x) < 3.0f && x != 0.0f) {
      EXPECT_NEAR(exact / (0.5 * static_cast<double>(x) * (1.0 + std::tanh(u))), 1.0, 1e-9);
    }
  }
}

TEST(Fp8Activation, Ends) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Activation activation : {Activation::silu, Activation::gelu}) {
    EXPECT_EQ(activated(activation, infinity), infinity);
    EXPECT_EQ(activated(activation, -1e20f), 0.0f);
    EXPECT_EQ(activated(activation, -3e38f), 0.0f);
    EXPECT_TRUE(std::isnan(activated(activation, -infinity)));
    EXPECT_TRUE(std::isnan(activated(activation, NAN)));
  }
  EXPECT_TRUE(std::isnan(activated(Activation::relu, NAN)));
  EXPECT_EQ(activated(Activation::relu, infinity), infinity);
  EXPECT_EQ(activated(Activation::relu, -infinity), 0.0f);
}

}  // namespace
}  // namespace test
