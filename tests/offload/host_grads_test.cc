// Gradients that are added up in host memory: every sum is that of plain loops, every norm that of grad_norm.
// SPDX-License-Identifier: MIT
#include "offload/grad_sums.h"

#include "optimizers/norm_group.h"
#include "tests/reference/elements.h"

#include <octavo/backend.h>

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace octavo::offload {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

// Values of many magnitudes and, where `finite` is false, an infinity and a NaN.
std::vector<std::byte> gradient(DType dtype, std::int64_t numel, std::uint32_t seed, bool finite = true) {
  std::mt19937 random(seed);
  std::vector<std::byte> data(static_cast<std::size_t>(numel * dtype_bytes(dtype)));
  std::normal_distribution<float> values(0.0F, 3.0F);
  for (std::int64_t i = 0; i < numel; ++i)
    reference::store_nearest(dtype, data.data(), i, values(random) * (i % 7 == 0 ? 1e-6F : 1.0F));
  if (!finite && numel > 3) {
    reference::store_nearest(dtype, data.data(), 0, std::numeric_limits<float>::infinity());
    reference::store_nearest(dtype, data.data(), 1, std::numeric_limits<float>::quiet_NaN());
  }
  return data;
}

std::vector<std::byte> added(std::vector<std::byte> to, DType to_dtype, const std::vector<std::byte>& from,
                             DType from_dtype, std::int64_t numel, bool first) {
  for (std::int64_t i = 0; i < numel; ++i) {
    const float value = reference::load(from_dtype, from.data(), i);
    reference::store_nearest(to_dtype, to.data(), i,
                             first ? value : reference::load(to_dtype, to.data(), i) + value);
  }
  return to;
}

std::vector<double> chunks(std::int64_t numel) {
  return std::vector<double>(static_cast<std::size_t>((numel + 65535) / 65536));
}

void expect_same(const GradNorm& a, const GradNorm& b) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(a.l2), std::bit_cast<std::uint64_t>(b.l2));
  EXPECT_EQ(std::bit_cast<std::uint64_t>(a.max), std::bit_cast<std::uint64_t>(b.max));
  EXPECT_EQ(a.nonfinite, b.nonfinite);
}

void check_add(DType to_dtype, DType from_dtype, std::int64_t numel, bool finite) {
  for (const bool first : {true, false}) {
    const auto to = gradient(to_dtype, numel, 1);
    const auto from = gradient(from_dtype, numel, 2, finite);
    const auto expected = added(to, to_dtype, from, from_dtype, numel, first);
    auto plain = to;
    ASSERT_TRUE(add_gradient(plain.data(), to_dtype, from.data(), from_dtype, numel, first, nullptr, 1).ok());
    EXPECT_EQ(plain, expected) << numel << " elements, first " << first;
    auto summed = to;
    GradSums sums;
    ASSERT_TRUE(add_gradient(summed.data(), to_dtype, from.data(), from_dtype, numel, first, &sums, 2).ok());
    EXPECT_EQ(summed, expected) << numel << " elements, first " << first;
    const GradView view{expected.data(), to_dtype, numel};
    GradSums again = sums;  // what was there before is replaced
    again.chunks.resize(3, 1.0);
    again.max_bits = 77;
    again.nonfinite = 77;
    ASSERT_TRUE(sum_gradient(view, again, 1).ok());
    auto workspace = chunks(numel);
    const auto norm = grad_norm({&view, 1}, workspace);
    ASSERT_TRUE(norm.ok());
    expect_same(join_sums(sums.chunks, sums.max_bits, sums.nonfinite), *norm);
    expect_same(join_sums(again.chunks, again.max_bits, again.nonfinite), *norm);
  }
}

TEST(Held, SumsAreThoseOfPlainLoopsInEveryImplementation) {
  for (const Implementation& implementation : implementations()) {
    if (!implementation.supported) continue;
    SCOPED_TRACE(implementation.name);
    ASSERT_TRUE(force_implementation(implementation.name).ok());
    for (const DType to : kTypes) {
      for (const DType from : kTypes) {
        SCOPED_TRACE(std::string(name(to)) + " + " + std::string(name(from)));
        for (const std::int64_t numel : {0, 1, 15, 1025, 66000}) check_add(to, from, numel, true);
        check_add(to, from, 1025, false);
      }
    }
  }
  ASSERT_TRUE(force_implementation("").ok());
}

// The chunks of several gradients, each summed when it came, are one norm.
TEST(Held, SumsOfManyJoinToTheirNorm) {
  const std::vector<std::int64_t> sizes = {70000, 0, 3, 65536, 200001};
  std::vector<std::vector<std::byte>> data;
  std::vector<GradView> views;
  std::vector<double> all;
  std::uint32_t max_bits = 0;
  std::int64_t nonfinite = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const DType dtype = kTypes[i % 3];
    data.push_back(gradient(dtype, sizes[i], static_cast<std::uint32_t>(i), i != 3));
    views.push_back({data.back().data(), dtype, sizes[i]});
    GradSums sums;
    ASSERT_TRUE(sum_gradient(views.back(), sums, 2).ok());
    all.insert(all.end(), sums.chunks.begin(), sums.chunks.end());
    max_bits = std::max(max_bits, sums.max_bits);
    nonfinite += sums.nonfinite;
  }
  std::vector<double> workspace(static_cast<std::size_t>(grad_norm_workspace(views)));
  const auto norm = grad_norm(views, workspace);
  ASSERT_TRUE(norm.ok());
  EXPECT_EQ(norm->nonfinite, 2);
  expect_same(join_sums(all, max_bits, nonfinite), *norm);
}

}  // namespace
}  // namespace octavo::offload
