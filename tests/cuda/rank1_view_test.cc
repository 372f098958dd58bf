// Tests how a tensor with rank-1 scales is folded for a GPU: every element is in one panel, division by a
// constant is correct, and the maxima are small compared with the tensor. It needs no GPU.
// SPDX-License-Identifier: MIT
#include "cuda/rank1/matrix_view.h"

#include <gtest/gtest.h>

#include <vector>

namespace {

using octavo::cuda::kChunk;
using octavo::cuda::Rank1View;

std::uint32_t divide(const Rank1View& view, std::uint32_t number) {
  const auto high = static_cast<std::uint32_t>((std::uint64_t{view.magic} * number) >> 32);
  return octavo::cuda::over_divisor(view, high, number);
}

TEST(Rank1View, Divides) {
  for (const std::uint32_t divisor :
       {1U, 2U, 3U, 5U, 7U, 8U, 96U, 127U, 128U, 129U, 641U, 65535U, 65537U, 1U << 31, (1U << 31) + 1, ~0U}) {
    Rank1View view{};
    octavo::cuda::set_divisor(view, divisor);
    for (std::uint64_t at = 0; at <= 0xFFFFFFFFULL; at += at < 3000 ? 1 : 1 + at / 1000) {
      const auto number = static_cast<std::uint32_t>(at);
      ASSERT_EQ(divide(view, number), number / divisor) << number << " / " << divisor;
    }
    for (const std::uint32_t number : {divisor - 1, divisor, divisor + 1, 2 * divisor - 1, ~0U, ~0U - 1})
      ASSERT_EQ(divide(view, number), number / divisor) << number << " / " << divisor;
  }
}

struct Case {
  std::vector<std::int64_t> shape;
  std::int64_t block;
  int leading, lane_bits;
  bool panels;
};

TEST(Rank1View, FoldsWhereItIsCheap) {
  const Case cases[] = {
      {{4096, 1024}, 128, 1, 5, true},     {{4096, 640}, 128, 1, 4, true},
      {{4096, 640}, 256, 1, 5, false},     {{2048, 1024, 1}, 128, 1, 5, true},
      {{512, 512, 3, 3}, 128, 1, 5, true}, {{8, 4096, 14336}, 128, 2, 5, true},
      {{64, 64, 3, 3}, 128, 1, 5, false},  {{1025, 641}, 128, 1, 5, false},
      {{4096, 8}, 128, 1, 0, false},       {{1024, 1, 9}, 128, 0, 5, true},
      {{1, 1}, 128, 0, 0, false},          {{100000, 100}, 128, 1, 4, false},
      {{4096, 1024}, 512, 1, 5, false},
  };
  for (const Case& c : cases) {
    const Rank1View view = octavo::cuda::view_of(c.shape, c.block);
    std::string name;
    for (const std::int64_t n : c.shape) name += std::to_string(n) + " ";
    EXPECT_EQ(view.leading, c.leading) << name;
    EXPECT_EQ(view.lane_bits, c.lane_bits) << name;
    EXPECT_EQ(octavo::cuda::uses_panels(view, c.block), c.panels) << name;
    std::int64_t numel = 1;
    for (const std::int64_t n : c.shape) numel *= n;
    EXPECT_EQ(view.rows * view.columns, numel) << name;
    EXPECT_LE(view.rows + view.columns, numel / 64 + (1 << 17)) << name;
    // Strips and groups of rows cover the tensor, and the last of each begins inside.
    const std::int64_t width = kChunk << view.lane_bits;
    EXPECT_GE(view.strips * width, view.columns) << name;
    EXPECT_LT((view.strips - 1) * width, view.columns) << name;
    const std::int64_t groups = octavo::cuda::panels_of(view) / view.strips;
    const int rows = octavo::cuda::panel_rows(view.lane_bits);
    EXPECT_GE(groups * rows, view.rows) << name;
    EXPECT_LT((groups - 1) * rows, view.rows) << name;
    if (c.panels) {
      EXPECT_EQ(rows % (2 * octavo::cuda::rows_abreast(view.lane_bits)), 0) << name;
    }
  }
}

}  // namespace
