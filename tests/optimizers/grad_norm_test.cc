// The gradient norm against a long double sum, its exact counts, and its bits over implementations, threads
// and both ways to ask for it.
// SPDX-License-Identifier: MIT
#include "optimizers/norm_group.h"
#include "tests/reference/formats.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"

#include <bit>
#include <cmath>
#include <limits>

namespace test {
namespace {

using octavo::DType;
using octavo::GradNorm;
using octavo::GradView;

struct Grads {
  std::vector<Buffer> buffers;
  std::vector<GradView> views;

  void add(DType dtype, const std::vector<float>& values) {
    const std::int64_t bytes = octavo::dtype_bytes(dtype);
    const auto numel = static_cast<std::int64_t>(values.size());
    Buffer buffer(numel * bytes, bytes * static_cast<std::int64_t>(1 + views.size() % 7));
    for (std::int64_t i = 0; i < numel; ++i) {
      reference::store_nearest(dtype, buffer.data(), i, values[static_cast<std::size_t>(i)]);
    }
    views.push_back({buffer.data(), dtype, numel});
    buffers.push_back(std::move(buffer));
  }

  [[nodiscard]] GradNorm norm(int threads = 1) const {
    std::vector<double> workspace(static_cast<std::size_t>(octavo::grad_norm_workspace(views)));
    const auto result = octavo::grad_norm(views, workspace, threads);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : GradNorm{-1.0, -1.0, -1};
  }
};

Grads many_sizes(DType dtype, int spread) {
  Grads grads;
  std::uint64_t seed = 1;
  for (const std::int64_t numel : {0, 1, 31, 255, 256, 257, 4095, 4097, 100003}) {
    grads.add(dtype, spread_values(numel, seed++, spread));
  }
  return grads;
}

struct Expected {
  long double l2 = 0;
  double max = 0;
  std::int64_t count = 0;
};

Expected plain_norm(const Grads& grads) {
  Expected expected;
  long double sum = 0;
  for (const GradView& view : grads.views) {
    for (std::int64_t i = 0; i < view.numel; ++i) {
      const auto value = static_cast<double>(reference::load(view.dtype, view.data, i));
      sum += static_cast<long double>(value) * static_cast<long double>(value);
      expected.max = std::max(expected.max, std::fabs(value));
      ++expected.count;
    }
  }
  expected.l2 = std::sqrt(sum);
  return expected;
}

TEST(GradNorm, EqualsALongDoubleSum) {
  for (const DType dtype : octavo::all_dtypes()) {
    for (const int spread : {2, 12, 100}) {
      const Grads grads = many_sizes(dtype, spread);
      const Expected expected = plain_norm(grads);
      const GradNorm got = grads.norm();
      // A sum of n squares in double, in any order, is off by n 2^-53 at most; the root halves it and adds
      // 2^-53.
      const long double bound = expected.l2 * (static_cast<long double>(expected.count) / 2 + 2) * 0x1p-53L;
      EXPECT_LE(std::fabs(static_cast<long double>(got.l2) - expected.l2), bound) << octavo::name(dtype);
      EXPECT_EQ(got.max, expected.max) << octavo::name(dtype);
      EXPECT_EQ(got.nonfinite, 0);
    }
  }
}

TEST(GradNorm, SameBitsForEveryImplementationAndThreadCount) {
  for (const DType dtype : octavo::all_dtypes()) {
    Grads grads = many_sizes(dtype, 30);
    grads.add(dtype, spread_values(300007, 99, 30));
    const GradNorm first = grads.norm();
    for (const std::string& implementation : supported_implementations()) {
      const ForcedImplementation forced(implementation);
      for (const int threads : {1, 2, 5}) {
        const GradNorm got = grads.norm(threads);
        EXPECT_EQ(std::bit_cast<std::uint64_t>(got.l2), std::bit_cast<std::uint64_t>(first.l2))
            << implementation;
        EXPECT_EQ(got.max, first.max) << implementation;
      }
    }
  }
}

TEST(GradNorm, NothingIsZero) {
  EXPECT_EQ(Grads().norm().l2, 0.0);
  Grads empty;
  empty.add(DType::f32, {});
  EXPECT_EQ(empty.norm().l2, 0.0);
  EXPECT_EQ(empty.norm().max, 0.0);
  EXPECT_EQ(empty.norm().nonfinite, 0);
}

TEST(GradNorm, CountsWhatIsNotFinite) {
  // The largest float whose square is finite, and the next.
  const float last = std::sqrt(std::numeric_limits<float>::max());
  const float finite = last * last <= std::numeric_limits<float>::max() ? last : std::nextafter(last, 0.0f);
  const float next = std::nextafter(finite, INFINITY);
  ASSERT_TRUE(std::isfinite(finite * finite));
  ASSERT_TRUE(std::isinf(next * next));
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const std::size_t numel : {1u, 9u, 40u, 70000u}) {
      for (const std::size_t at : {std::size_t{0}, numel / 2, numel - 1}) {
        const auto with = [&](float value) {
          std::vector<float> values(numel, 0.5f);
          values[at] = value;
          Grads grads;
          grads.add(DType::f32, values);
          return grads.norm(2);
        };
        EXPECT_EQ(with(finite).nonfinite, 0) << implementation;
        EXPECT_EQ(with(-finite).nonfinite, 0) << implementation;
        const GradNorm over = with(-next);
        EXPECT_EQ(over.nonfinite, 1) << implementation;
        EXPECT_TRUE(std::isfinite(over.l2)) << implementation;
        EXPECT_EQ(over.max, static_cast<double>(next)) << implementation;
        const GradNorm infinite = with(-INFINITY);
        EXPECT_EQ(infinite.nonfinite, 1) << implementation;
        EXPECT_EQ(infinite.l2, HUGE_VAL) << implementation;
        EXPECT_EQ(infinite.max, HUGE_VAL) << implementation;
        const GradNorm nan = with(NAN);
        EXPECT_EQ(nan.nonfinite, 1) << implementation;
        EXPECT_TRUE(std::isnan(nan.l2)) << implementation;
        EXPECT_TRUE(std::isnan(nan.max)) << implementation;
      }
    }
    Grads mixed;
    std::vector<float> values(5000, 1.0f);
    for (std::size_t i = 0; i < values.size(); i += 10) values[i] = i % 20 == 0 ? NAN : INFINITY;
    mixed.add(DType::bf16, values);
    mixed.add(DType::f16, values);
    EXPECT_EQ(mixed.norm(2).nonfinite, 1000) << implementation;
  }
}

GradNorm run(octavo::NormGroup& group, int threads = 1) {
  const Buffer workspace(group.workspace_bytes());
  GradNorm out{-1.0, -1.0, -1};
  const octavo::Status status =
      group.run({workspace.data(), static_cast<std::size_t>(workspace.size())}, &out, nullptr, threads);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(workspace.surroundings_intact());
  return out;
}

void expect_same_bits(const GradNorm& got, const GradNorm& expected) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(got.l2), std::bit_cast<std::uint64_t>(expected.l2));
  EXPECT_EQ(std::bit_cast<std::uint64_t>(got.max), std::bit_cast<std::uint64_t>(expected.max));
  EXPECT_EQ(got.nonfinite, expected.nonfinite);
}

TEST(NormGroup, EqualsGradNorm) {
  for (const DType dtype : octavo::all_dtypes()) {
    Grads grads = many_sizes(dtype, 30);
    auto group = octavo::NormGroup::create({}, grads.views);
    ASSERT_TRUE(group.ok()) << group.status().message();
    for (const int threads : {0, 1, 2, 5}) expect_same_bits(run(*group, threads), grads.norm());
    // It keeps pointers: what is written there later is seen.
    const GradNorm before = grads.norm();
    for (const float value : {-7.5f, INFINITY, NAN}) {
      reference::store_nearest(dtype, grads.buffers.back().data(), 100000, value);
      expect_same_bits(run(*group), grads.norm());
      EXPECT_NE(run(*group).max, before.max);
    }
    EXPECT_EQ(run(*group).nonfinite, 1);
  }
}

TEST(NormGroup, RebindTakesNewGradientsOrKeepsTheOld) {
  const Grads small = many_sizes(DType::bf16, 4);
  Grads large = many_sizes(DType::f32, 4);
  large.add(DType::f16, spread_values(300007, 99, 4));
  auto group = octavo::NormGroup::create({}, small.views);
  ASSERT_TRUE(group.ok());
  const std::int64_t bytes = group->workspace_bytes();
  ASSERT_TRUE(group->rebind(large.views).ok());
  EXPECT_GT(group->workspace_bytes(), bytes);
  expect_same_bits(run(*group), large.norm());
  std::vector<GradView> bad = small.views;
  bad.back().data = nullptr;
  EXPECT_FALSE(group->rebind(bad).ok());
  octavo::NormGroup moved = std::move(*group);
  expect_same_bits(run(moved), large.norm());
  ASSERT_TRUE(moved.rebind({}).ok());
  expect_same_bits(run(moved), GradNorm{});
}

TEST(ClipFactor, IsTorchsClipGradNorm) {
  EXPECT_EQ(octavo::clip_factor(10.0, 1.0), 1.0 / (10.0 + 1e-6));
  EXPECT_EQ(octavo::clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(octavo::clip_factor(0.0, 1.0), 1.0);
  const double unscale = 1.0 / 1024.0;
  EXPECT_EQ(octavo::clip_factor(10240.0, 1.0, unscale), unscale * (1.0 / (10240.0 * unscale + 1e-6)));
  EXPECT_EQ(octavo::clip_factor(512.0, 1.0, unscale), unscale);
  EXPECT_TRUE(std::isnan(octavo::clip_factor(std::nan(""), 1.0)));
}

TEST(ClipFactor, BoundsTheNormOfTheStep) {
  Grads grads = many_sizes(DType::f32, 4);
  const double l2 = grads.norm().l2;
  const double factor = octavo::clip_factor(l2, 0.25);
  EXPECT_LT(factor * l2, 0.25);
  EXPECT_NEAR(factor * l2, 0.25, 0.25 * 1e-6 / l2 * 2);
}

}  // namespace
}  // namespace test
