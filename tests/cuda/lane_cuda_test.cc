// Division and square root without branches (src/lane/cuda.cuh) round like IEEE: tested for every float in
// range for the root and for the quotients of a block's scale, and for random pairs otherwise.
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"
#include "tests/cuda/lane_kernels.h"
#include "tests/support/cases.h"

#include <bit>

namespace test {
namespace {

class LaneCuda : public GpuTest {};
class SmallLaneCuda : public GpuTest {};

void expect_equal(cudaError_t error, const LaneMismatch& m, const std::string& what) {
  ASSERT_EQ(error, cudaSuccess) << what << ": " << cudaGetErrorString(error);
  EXPECT_GT(m.checked, 0u) << what;
  if (m.count == 0) return;
  const auto value = [](std::uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits)); };
  char line[200];
  std::snprintf(line, sizeof line, "%llu of %llu differ; a %a, b %a: got %a (%08x), expected %a (%08x)",
                m.count, m.checked, value(m.a), value(m.b), value(m.got), m.got, value(m.expected),
                m.expected);
  ADD_FAILURE() << what << ": " << line;
}

TEST_F(LaneCuda, TheRootOfEveryFloatInRange) {
  const LaneRange range = lane_range();
  LaneMismatch m{};
  expect_equal(check_roots(-127, range.second_high, &m), m, "sqrt");
}

// A block's scale is its maximum divided by the largest code (times 2^48, so that it is exact even if small),
// and then one divided by the scale.
TEST_F(LaneCuda, TheScaleOfEveryMaximumInRange) {
  const LaneRange range = lane_range();
  LaneMismatch m{};
  expect_equal(check_quotients_of(1.0F, -126, range.first_high + 1, &m), m, "1 / x");
  for (const float largest : {448.0F, 57344.0F})
    expect_equal(check_quotients_by(largest, -101, range.first_high + 48, &m), m,
                 "x / " + std::to_string(largest));
}

TEST_F(LaneCuda, RandomQuotients) {
  LaneMismatch m{};
  expect_equal(check_random_quotients(1LL << 28, &m), m, "a / b");
}

// Small numbers: wherever the lane may be used, it gives the bits of the scalar lane.
TEST_F(LaneCuda, StepsOfAnySmallness) {
  constexpr long long kUpdates = 1LL << 27;
  LaneMismatch m{};
  expect_equal(check_updates(kUpdates, &m), m, "AdamW");
  EXPECT_GT(m.checked, static_cast<unsigned long long>(kUpdates) / 2);
}

TEST_F(LaneCuda, EveryMantissaOverSomeDenominators) {
  LaneMismatch m{};
  for (const float b :
       {1.0F, 0x1.000002p0F, 0x1.fffffep0F, 3.0F, 0x1.8p-50F, 0x1.fffffep60F, 0x1.555556p3F}) {
    expect_equal(check_quotients_by(b, -60, -59, &m), m, "small x / " + std::to_string(b));
    expect_equal(check_quotients_by(b, 0, 1, &m), m, "x / " + std::to_string(b));
    expect_equal(check_quotients_by(b, 59, 60, &m), m, "large x / " + std::to_string(b));
  }
}

// A quotient's mantissa depends only on its operands' mantissas, of which there are 2^46 pairs: about a
// minute.
TEST_F(LaneCuda, AllPairsOfMantissas) {
  constexpr std::uint32_t kDenominators = 1U << 23;
  const std::uint32_t most = full() ? kDenominators : 1U << 15;
  for (std::uint32_t first = 0; first < most; first += 1U << 15) {
    LaneMismatch m{};
    // Without OCTAVO_TEST_FULL=1, a sample of them.
    const std::uint32_t start = full() ? first : 0x2AAAAAU;
    expect_equal(check_all_quotients(start, 1U << 15, &m), m, "a / b from " + std::to_string(start));
  }
}

TEST_F(SmallLaneCuda, SomeOfEach) {
  LaneMismatch m{};
  expect_equal(check_random_quotients(1 << 16, &m), m, "a / b");
}

}  // namespace
}  // namespace test
