// Compares the evaluation shares of several ranks with the complete evaluation of one process.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace octavo_train {

// REQUIRES: an evaluation of 2 to 16 batches, so that some of 17 ranks have no batch.
inline void expect_shares_add_up(Task& task) {
  const auto share = [&](int rank, int ranks) {
    auto out = task.evaluate_shard({torch::kCPU, [] { return false; }, rank, ranks});
    EXPECT_TRUE(out);
    return out.value_or(Tally{});
  };
  const Evaluation whole = task.summarize(share(0, 1));
  ASSERT_GT(whole.units, 1);
  for (const int ranks : {2, 3, 17}) {
    Tally all;
    std::int64_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Tally one = share(rank, ranks);
      all.sums.resize(one.sums.size());
      std::transform(all.sums.begin(), all.sums.end(), one.sums.begin(), all.sums.begin(), std::plus<>());
      all.units += one.units;
      most = std::max(most, one.units);
      std::copy(one.examples.begin(), one.examples.end(), std::back_inserter(all.examples));
      if (ranks == 17 && rank == 16) {
        EXPECT_EQ(one.units, 0);
      }
    }
    EXPECT_LT(most, whole.units) << "a rank of " << ranks << " went through everything";
    std::sort(all.examples.begin(), all.examples.end(),
              [](const Example& a, const Example& b) { return a.number < b.number; });
    const Evaluation found = task.summarize(all);
    EXPECT_EQ(found.units, whole.units);
    ASSERT_EQ(found.metrics.size(), whole.metrics.size());
    // Each batch gives the same numbers. At most 16 numbers of one sign are added in double in another order:
    // 2 x 15 roundings of 2^-53, in the numerator and in the denominator.
    for (std::size_t i = 0; i < whole.metrics.size(); ++i)
      EXPECT_NEAR(found.metrics[i].value, whole.metrics[i].value,
                  60 * 0x1p-53 * std::abs(whole.metrics[i].value))
          << whole.metrics[i].name << " on " << ranks;
    ASSERT_EQ(found.examples.size(), whole.examples.size());
    for (std::size_t i = 0; i < whole.examples.size(); ++i) {
      EXPECT_EQ(found.examples[i].name, whole.examples[i].name);
      EXPECT_EQ(found.examples[i].hypothesis, whole.examples[i].hypothesis);
    }
  }
}

}  // namespace octavo_train
