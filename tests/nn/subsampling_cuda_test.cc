// Tests the subsampling kernels against the plain composition in double precision. With small whole numbers
// every sum is exact, even in bf16, so results are bitwise equal and every ReLU has the same sign. These
// cases have odd numbers of frames and bands, clips of any length, and channels of more than one block. With
// real numbers, gradients are compared in fp32 only, because in bf16 a ReLU near zero may have the other
// sign.
// SPDX-License-Identifier: MIT
#include "tests/nn/gpu.h"
#include "train/nn/subsampling.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace octavo_train {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

class SubsamplingCuda : public NnGpuTest {};

const char* const kNames[] = {"output",      "first", "first_bias", "deep1",  "deep1_bias", "point1",
                              "point1_bias", "deep2", "deep2_bias", "point2", "point2_bias"};

struct Case {
  std::int64_t batch, frames, bands, channels;
  std::vector<std::int64_t> lengths;
};

// Makes values of a shape; the number is the number of terms in the sums that the values enter.
using Make = std::function<Tensor(const std::vector<std::int64_t>&, double)>;

Tensor whole(const std::vector<std::int64_t>& sizes, double terms) {
  return torch::randint(-1, 2, sizes, torch::kFloat64) *
         (torch::rand(sizes) < std::min(1.0, 3.5 / terms)).to(torch::kFloat64);
}
Tensor real(const std::vector<std::int64_t>& sizes, double terms) {
  return (torch::randn(sizes) / std::sqrt(terms)).to(torch::kBFloat16).to(torch::kFloat64);
}

Tensors parameters_of(const Case& c, const Make& make) {
  const std::vector<std::int64_t> taps{c.channels, 1, 3, 3}, points{c.channels, c.channels, 1, 1},
      one{c.channels};
  const auto channels = static_cast<double>(c.channels);
  return {make(taps, 9), make(one, 1),  make(taps, 9), make(one, 1),           make(points, channels),
          make(one, 1),  make(taps, 9), make(one, 1),  make(points, channels), make(one, 1)};
}

// Returns the output and the gradients of all parameters, which are fp32 or double.
Tensors run(const Case& c, const Tensor& features, const Tensors& p, const Tensor& upstream) {
  const Tensor lengths = torch::tensor(c.lengths, torch::kInt64).to(features.device());
  const Tensor out =
      subsample(features, lengths, {p[0], p[1], {{{p[2], p[3], p[4], p[5]}, {p[6], p[7], p[8], p[9]}}}});
  out.backward(upstream.to(out.options()));
  Tensors all{out.detach()};
  for (const Tensor& each : p) all.push_back(each.grad());
  return all;
}

struct Both {
  Tensors got, want;
};
Both both(const Case& c, torch::ScalarType type, const Make& make, double upstream_terms) {
  const Tensor features = make({c.batch, c.frames, c.bands}, 6);
  const Tensors parameters = parameters_of(c, make);
  const Tensor upstream =
      make({c.batch, subsampled(c.frames), c.channels * subsampled(c.bands)}, upstream_terms);
  return {
      run(c, features.to(torch::kCUDA, type), leaves(parameters, torch::kCUDA, torch::kFloat32), upstream),
      run(c, features, leaves(parameters, torch::kCPU, torch::kFloat64), upstream)};
}

void expect_exact(const Case& c, torch::ScalarType type, double upstream_terms) {
  SCOPED_TRACE(::testing::Message() << type << ' ' << c.batch << " x " << c.frames << " x " << c.bands
                                    << ", channels " << c.channels);
  const Both results = both(c, type, whole, upstream_terms);
  EXPECT_EQ(results.got[0].scalar_type(), type);
  for (std::size_t i = 0; i < results.got.size(); ++i) {
    const Tensor off = (results.got[i].to(torch::kCPU, torch::kFloat64) - results.want[i]).abs();
    EXPECT_EQ(off.max().item<double>(), 0.0)
        << kNames[i] << ": " << off.count_nonzero().item<std::int64_t>() << " of " << off.numel();
    EXPECT_GT(results.want[i].count_nonzero().item<std::int64_t>(), 0) << kNames[i] << " shows nothing";
  }
}

TEST_F(SubsamplingCuda, SmallWholeNumbersAreExact) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    expect_exact({3, 50, 24, 16, {50, 25, 0}}, type, 6);
    expect_exact({2, 33, 21, 8, {33, 1}}, type, 4);
    expect_exact({4, 71, 6, 24, {71, 70, 69, 66}}, type, 6);
  }
}

TEST_F(SubsamplingCuda, WholeNumbersAreExact) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    expect_exact({2, 131, 128, 264, {131, 66}}, type, 35);
    expect_exact({5, 203, 80, 256, {203, 199, 64, 7, 130}}, type, 35);
    expect_exact({1, 64, 320, 40, {61}}, type, 20);
  }
}

// The sums are fp32 with a few hundred terms. ReLU inputs close enough to zero to flip are so rare that these
// cases contain none.
TEST_F(SubsamplingCuda, RealNumbersEqualThePlainComposition) {
  for (const Case& c : {Case{3, 50, 24, 16, {50, 25, 0}}, Case{2, 67, 33, 40, {67, 30}}}) {
    const Both results = both(c, torch::kFloat32, real, 1);
    for (std::size_t i = 0; i < results.got.size(); ++i) {
      const Tensor off = results.got[i].to(torch::kCPU, torch::kFloat64) - results.want[i];
      EXPECT_LE(off.norm().item<double>(), 2e-5 * results.want[i].norm().item<double>()) << kNames[i];
    }
  }
}

// The output's error in bf16 is at most that of four successive roundings.
TEST_F(SubsamplingCuda, Bf16OutputEqualsThePlainComposition) {
  const Case c{3, 203, 128, 64, {203, 101, 8}};
  const Both results = both(c, torch::kBFloat16, real, 1);
  const Tensor off = results.got[0].to(torch::kCPU, torch::kFloat64) - results.want[0];
  EXPECT_LE(off.norm().item<double>(), 4 * 0x1p-8 * results.want[0].norm().item<double>());
}

TEST_F(SubsamplingCuda, GivesTheSameBitsAgain) {
  const Case c{3, 203, 128, 64, {203, 101, 8}};
  const Tensor features = real({3, 203, 128}, 1).to(torch::kCUDA, torch::kBFloat16);
  const Tensors parameters = parameters_of(c, real);
  const Tensor upstream = real({3, 26, 64 * 16}, 1);
  const Tensors first = run(c, features, leaves(parameters, torch::kCUDA, torch::kFloat32), upstream);
  const Tensors second = run(c, features, leaves(parameters, torch::kCUDA, torch::kFloat32), upstream);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], second[i])) << kNames[i];
}

// A number of channels that is not a multiple of the vector size, and features that need a gradient.
TEST_F(SubsamplingCuda, OthersTakeThePlainWay) {
  expect_exact({2, 50, 24, 12, {50, 25}}, torch::kFloat32, 6);
  const Case c{2, 20, 16, 8, {20, 11}};
  const Tensor features = whole({2, 20, 16}, 4).to(torch::kCUDA, torch::kFloat32).requires_grad_();
  run(c, features, leaves(parameters_of(c, whole), torch::kCUDA, torch::kFloat32), torch::ones({2, 3, 16}));
  EXPECT_TRUE(features.grad().defined());
}

}  // namespace
}  // namespace octavo_train
