// Compares all-reduces by rings, and the part that the backward pass does not hide, with numbers computed by
// hand.
// SPDX-License-Identifier: MIT
#include <octavo/plan.h>

#include <gtest/gtest.h>

#include <vector>

namespace test {
namespace {

namespace plan = octavo::plan;

TEST(Ranks, OneRankSendsNothing) {
  EXPECT_EQ(plan::all_reduce_seconds({1, 8, 1e9, 1e9, 1e-3}, 1000), 0.0);
  EXPECT_EQ(plan::all_reduce_seconds({1, 1, 0, 0, 1e-3}, 1000), 0.0);
}

TEST(Ranks, ARingOfOneHost) {
  // Each of 4 ranks sends 3 parts of 250 MB twice, at 1 GB/s, in 6 messages.
  EXPECT_NEAR(plan::all_reduce_seconds({4, 8, 1e9, 0, 1e-3}, 1000000000), 1.5 + 6e-3, 1e-12);
  EXPECT_NEAR(plan::all_reduce_seconds({8, 8, 450e9, 0, 0}, 900000000), 2 * 7.0 / 8 * 2e-3, 1e-12);
  EXPECT_NEAR(plan::all_reduce_seconds({2, 8, 1e9, 0, 5e-6}, 0), 1e-5, 1e-15);
}

TEST(Ranks, SeveralHosts) {
  // 2 hosts of 4: within a host as above; between them, half of each rank's 250 MB, twice, at 0.1 GB/s.
  EXPECT_NEAR(plan::all_reduce_seconds({8, 4, 1e9, 1e8, 1e-3}, 1000000000), 1.5 + 6e-3 + 2.5 + 2e-3, 1e-12);
  // 3 hosts of one: one ring over the network.
  EXPECT_NEAR(plan::all_reduce_seconds({3, 1, 1e9, 1e8, 0}, 300000000), 4.0, 1e-12);
  // A host that is not full counts as a full one.
  EXPECT_EQ(plan::all_reduce_seconds({12, 8, 1e9, 1e8, 0}, 8000),
            plan::all_reduce_seconds({16, 8, 1e9, 1e8, 0}, 8000));
}

TEST(Ranks, WhatIsNotHidden) {
  const plan::Links links{2, 8, 1e9, 0, 0};  // a byte takes a nanosecond
  const std::vector<plan::Bucket> buckets = {{1.0, 1000000000}, {1.5, 1000000000}, {4.0, 500000000}};
  // 1 to 2, 2 to 3, 4 to 4.5.
  EXPECT_NEAR(plan::exposed_seconds(links, buckets, 4.0), 0.5, 1e-12);
  EXPECT_NEAR(plan::exposed_seconds(links, buckets, 4.25), 0.25, 1e-12);
  EXPECT_EQ(plan::exposed_seconds(links, buckets, 5.0), 0.0);
  EXPECT_NEAR(plan::exposed_seconds(links, std::span(buckets).first(2), 2.5), 0.5, 1e-12);
  EXPECT_EQ(plan::exposed_seconds(links, {}, 1.0), 0.0);
}

}  // namespace
}  // namespace test
