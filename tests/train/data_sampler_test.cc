// Tests the order of samples: a bijection per epoch, windows inside the range, and numbers that must never
// change.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace octavo_train {
namespace {

// Offsets need no bytes, so a range of an empty corpus is enough.
TextRange range_of(std::int64_t size, std::int64_t begin = 0) { return {{}, begin, begin + size}; }

std::vector<std::int64_t> offsets(const Sampler& sampler, std::uint64_t first, std::int64_t count) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(sampler.offset(first + static_cast<std::uint64_t>(i)));
  return out;
}

TEST(Permutation, IsABijection) {
  std::vector<std::uint64_t> sizes(130);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const std::uint64_t power : {256, 1024, 4096, 65536})
    for (const std::uint64_t size : {power - 1, power, power + 1}) sizes.push_back(size);
  sizes.push_back(1000003);
  for (const std::uint64_t size : sizes) {
    for (const std::uint64_t key : {0ULL, 1ULL, 0xFFFFFFFFFFFFFFFFULL}) {
      const Permutation permutation(size, key);
      std::vector<bool> seen(size, false);
      for (std::uint64_t i = 0; i < size; ++i) {
        const std::uint64_t image = permutation(i);
        ASSERT_LT(image, size);
        ASSERT_FALSE(seen[image]) << "size " << size << ", twice: " << image;
        seen[image] = true;
      }
    }
  }
}

TEST(Permutation, LargeSizesStayInside) {
  const std::uint64_t size = (std::uint64_t{1} << 62) - 5;
  const Permutation permutation(size, 7);
  std::set<std::uint64_t> images;
  for (std::uint64_t i = 0; i < 1000; ++i) images.insert(permutation(size - 1 - i));
  EXPECT_EQ(images.size(), 1000U);
  EXPECT_LT(*images.rbegin(), size);
}

// Every position gets every value about equally often, within 6 standard deviations of a binomial count.
TEST(Permutation, KeysGiveEvenlyDifferentOrders) {
  constexpr int kSize = 5, kKeys = 20000;
  int counts[kSize][kSize] = {};
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const Permutation permutation(kSize, key * 0x9E3779B97F4A7C15);
    for (std::uint64_t i = 0; i < kSize; ++i) ++counts[i][permutation(i)];
  }
  for (const auto& row : counts)
    for (const int count : row) EXPECT_NEAR(count, kKeys / kSize, 6 * 56.6);  // sqrt(20000 * 0.2 * 0.8)
}

TEST(Sampler, EachEpochHasEveryWindowOnce) {
  const Sampler sampler(range_of(1001, 50), 10, Order(100, 1337, 0));
  std::vector<std::int64_t> shifts;
  for (std::uint64_t epoch = 0; epoch < 8; ++epoch) {
    std::vector<std::int64_t> all = offsets(sampler, epoch * 100, 100);
    EXPECT_EQ(sampler.order().epoch(epoch * 100 + 99), epoch);
    std::sort(all.begin(), all.end());
    const std::int64_t shift = all.front() - 50;
    EXPECT_GE(shift, 0);
    EXPECT_LT(shift, 10);
    shifts.push_back(shift);
    for (std::int64_t i = 0; i < 99; ++i)
      ASSERT_EQ(all[static_cast<std::size_t>(i)], 50 + i * 10 + shift) << "epoch " << epoch;
    EXPECT_EQ(all.back(), 50 + 990);  // moved back, because there is no byte to spare
  }
  EXPECT_EQ(shifts.front(), 0);
  EXPECT_GT(std::set(shifts.begin(), shifts.end()).size(), 3U);
  EXPECT_NE(offsets(sampler, 0, 100), offsets(sampler, 100, 100));
}

TEST(Sampler, WindowsStayInTheirBlocks) {
  for (const std::int64_t block : {1, 2, 7, 512}) {
    for (const std::int64_t extra : {std::int64_t{0}, block / 2, block - 1}) {
      for (const std::int64_t samples : {1, 2, 9, 10}) {
        const Sampler sampler(range_of(10 * block + 1 + extra, 3), block, Order(samples, 5, 0));
        const std::int64_t end = samples == 10 ? 3 + 10 * block + 1 + extra : 3 + samples * block + 1;
        for (const std::int64_t offset : offsets(sampler, 0, 300)) {
          ASSERT_GE(offset, 3);
          ASSERT_LE(offset + block + 1, end) << "block " << block << ", samples " << samples;
        }
      }
    }
  }
}

TEST(Sampler, OrderDependsOnSeedSamplesAndStart) {
  const auto order = [](std::int64_t samples, std::uint64_t seed, std::uint64_t start) {
    return offsets(Sampler(range_of(64001), 64, Order(samples, seed, start)), start, 500);
  };
  const auto base = order(1000, 1, 0);
  EXPECT_EQ(base, order(1000, 1, 0));
  EXPECT_NE(base, order(1000, 2, 0));
  EXPECT_NE(base, order(999, 1, 0));
  EXPECT_NE(base, order(1000, 1, 1));
}

// Checkpoints depend on the order: a run that an older version began continues with it.
TEST(Sampler, GoldenOffsets) {
  const Sampler all(range_of(1000000), 512, Order(1953, 1337, 0));
  EXPECT_EQ(offsets(all, 0, 8),
            (std::vector<std::int64_t>{985600, 899584, 321024, 975872, 121856, 254464, 265216, 921088}));
  EXPECT_EQ(offsets(all, 1953, 4), (std::vector<std::int64_t>{97524, 471284, 122100, 492276}));
  const Sampler stage(range_of(1000000, 77), 100, Order(500, 42, 123456789));
  EXPECT_EQ(offsets(stage, 123456789, 4), (std::vector<std::int64_t>{23277, 43777, 36377, 28077}));
  EXPECT_EQ(stage.offset(std::uint64_t{1} << 63), 46365);
}

}  // namespace
}  // namespace octavo_train
