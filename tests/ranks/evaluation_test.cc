// Tests evaluations that are split over ranks.
// SPDX-License-Identifier: MIT
#include "train/run/evaluation.h"
#include "tests/ranks/ranks.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octavo_train {
namespace {

Tally share_of(int rank) {
  Tally out{{0.1 * (rank + 1), 1.0}, 10 + rank};
  for (const int each : {7, 5 + rank})
    out.examples.push_back(
        {"clip " + std::to_string(each * 10 - rank), "said", "heard\n\xff", each * 10 - rank});
  return out;
}

RANKS_TEST(tallies_are_added, 2, 3, 4) {
  const auto all = sum_over_ranks(process_group, share_of(process_group.rank()));
  ASSERT_TRUE(all);
  double first = 0;
  std::int64_t units = 0;
  for (int rank = 0; rank < process_group.ranks(); ++rank) first += 0.1 * (rank + 1), units += 10 + rank;
  ASSERT_EQ(all->sums.size(), 2U);
  EXPECT_EQ(all->sums[0], first) << "in the order of ranks";
  EXPECT_EQ(all->sums[1], process_group.ranks());
  EXPECT_EQ(all->units, units);
  ASSERT_EQ(all->examples.size(), 2U * static_cast<std::size_t>(process_group.ranks()));
  for (std::size_t i = 0; i < all->examples.size(); ++i) {
    const Example& each = all->examples[i];
    EXPECT_EQ(each.name, "clip " + std::to_string(each.number));
    EXPECT_EQ(each.hypothesis, "heard\n\xEF\xBF\xBD");
    EXPECT_LE(all->examples[i == 0 ? 0 : i - 1].number, each.number);
  }
}

RANKS_TEST(a_tally_that_one_rank_stops_is_none, 2, 3) {
  const bool stops = process_group.rank() == 1;
  EXPECT_FALSE(
      sum_over_ranks(process_group, stops ? std::nullopt : std::optional(share_of(process_group.rank()))));
  // A NaN sum stays NaN on all ranks.
  Tally bad = share_of(process_group.rank());
  if (stops) bad.sums[0] = std::nan("");
  const auto all = sum_over_ranks(process_group, bad);
  ASSERT_TRUE(all);
  EXPECT_TRUE(std::isnan(all->sums[0]));
  EXPECT_EQ(all->sums[1], process_group.ranks());
}

}  // namespace
}  // namespace octavo_train
