// Tests the allocator's rules one by one, with numbers computed by hand.
// SPDX-License-Identifier: MIT
#include "tests/plan/traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

namespace test {
namespace {

using ::testing::HasSubstr;

TEST(Allocator, RoundsTo512) {
  for (const bool expandable : {false, true}) {
    EXPECT_EQ(used({allocate(1, 1)}, expandable).allocated, 512);
    EXPECT_EQ(used({allocate(1, 512)}, expandable).allocated, 512);
    EXPECT_EQ(used({allocate(1, 513)}, expandable).allocated, 1024);
    const plan::MemoryUse use = used({allocate(1, 1), allocate(2, 1000)}, expandable);
    EXPECT_EQ(use.allocated, 512 + 1024);
    EXPECT_EQ(use.rounding, 512 + 1024 - 1001);
    EXPECT_EQ(use.reserved, 2 * kMiB);
  }
}

TEST(Allocator, NothingTakesNothing) {
  for (const bool expandable : {false, true}) {
    const plan::MemoryUse use = used({allocate(1, 0), release(1), allocate(1, 0)}, expandable);
    EXPECT_EQ(use.allocated, 0);
    EXPECT_EQ(use.reserved, 0);
    EXPECT_EQ(use.peak_event, -1);
    EXPECT_EQ(used({}, expandable).peak_event, -1);
  }
}

TEST(Allocator, SegmentsBySize) {
  EXPECT_EQ(used({allocate(1, kMiB)}, false).reserved, 2 * kMiB);
  EXPECT_EQ(used({allocate(1, kMiB + 1)}, false).reserved, 20 * kMiB);
  EXPECT_EQ(used({allocate(1, 10 * kMiB - 512)}, false).reserved, 20 * kMiB);
  EXPECT_EQ(used({allocate(1, 10 * kMiB)}, false).reserved, 10 * kMiB);
  EXPECT_EQ(used({allocate(1, 11 * kMiB)}, false).reserved, 12 * kMiB);
  EXPECT_EQ(used({allocate(1, kMiB)}, true).reserved, 2 * kMiB);
  EXPECT_EQ(used({allocate(1, kMiB + 1)}, true).reserved, 20 * kMiB);
  EXPECT_EQ(used({allocate(1, 11 * kMiB)}, true).reserved, 20 * kMiB);
  EXPECT_EQ(used({allocate(1, 21 * kMiB)}, true).reserved, 40 * kMiB);
}

// Two small blocks of 1 MiB fill a segment, and a large block does not go there.
TEST(Allocator, PoolsAreApart) {
  for (const bool expandable : {false, true}) {
    EXPECT_EQ(used({allocate(1, kMiB), allocate(2, kMiB)}, expandable).reserved, 2 * kMiB);
    EXPECT_EQ(used({allocate(1, kMiB), allocate(2, kMiB), allocate(3, 1)}, expandable).reserved, 4 * kMiB);
    EXPECT_EQ(used({allocate(1, 512), allocate(2, kMiB + 512)}, expandable).reserved, 22 * kMiB);
    // Small blocks do not use memory that large ones left.
    EXPECT_EQ(used({allocate(1, 2 * kMiB), release(1), allocate(2, 512)}, expandable).reserved, 22 * kMiB);
  }
}

// A rest of 1 MiB stays with a large block and counts as allocated; expandable segments split every rest.
TEST(Allocator, SplitsLargeBlocksAboveAMiB) {
  const std::vector<plan::Event> rest_of_one = {allocate(1, 11 * kMiB)};
  EXPECT_EQ(used(rest_of_one, false).allocated, 12 * kMiB);
  EXPECT_EQ(used(rest_of_one, false).rounding, kMiB);
  EXPECT_EQ(used(rest_of_one, true).allocated, 11 * kMiB);
  const std::vector<plan::Event> rest_above = {allocate(1, 11 * kMiB - 512)};
  EXPECT_EQ(used(rest_above, false).allocated, 11 * kMiB - 512);
  // 9 + 9 of 20 leave 2, which a request of 2 uses.
  EXPECT_EQ(used({allocate(1, 9 * kMiB), allocate(2, 9 * kMiB), allocate(3, 2 * kMiB)}, false).reserved,
            20 * kMiB);
  EXPECT_EQ(used({allocate(1, 9 * kMiB), allocate(2, 9 * kMiB), allocate(3, 3 * kMiB)}, false).reserved,
            40 * kMiB);
}

TEST(Allocator, MergesNeighbours) {
  for (const bool expandable : {false, true}) {
    // 4 x 5 fill a segment; two of them that are not neighbours do not make 10.
    std::vector<plan::Event> events;
    for (int i = 0; i < 4; ++i) events.push_back(allocate(i, 5 * kMiB));
    const auto with = [&](std::vector<plan::Event> more) {
      more.insert(more.begin(), events.begin(), events.end());
      return used(more, expandable).reserved;
    };
    const std::int64_t more = expandable ? 20 : 10;
    EXPECT_EQ(with({release(0), release(2), allocate(9, 10 * kMiB)}), (20 + more) * kMiB);
    EXPECT_EQ(with({release(1), release(2), allocate(9, 10 * kMiB)}), 20 * kMiB);
    EXPECT_EQ(with({release(2), release(1), allocate(9, 10 * kMiB)}), 20 * kMiB);
    EXPECT_EQ(with({release(0), release(2), release(1), allocate(9, 15 * kMiB)}), 20 * kMiB);
    EXPECT_EQ(with({release(3), release(1), release(2), release(0), allocate(9, 20 * kMiB)}), 20 * kMiB);
  }
}

// Blocks of different segments never merge.
TEST(Allocator, SegmentsStayApart) {
  const std::vector<plan::Event> events = {allocate(1, 10 * kMiB), allocate(2, 10 * kMiB), release(1),
                                           release(2), allocate(3, 20 * kMiB)};
  EXPECT_EQ(used(events, false).reserved, 40 * kMiB);
  EXPECT_EQ(used(events, true).reserved, 20 * kMiB);
}

// 12 and 30 are free: 11 uses the 12, and the 30 is left for 30.
TEST(Allocator, TakesTheSmallestThatFits) {
  std::vector<plan::Event> events = {allocate(1, 30 * kMiB), allocate(2, 12 * kMiB), release(1), release(2),
                                     allocate(3, 11 * kMiB), allocate(4, 30 * kMiB)};
  EXPECT_EQ(used(events, false).reserved, 42 * kMiB);
  // The lower of two blocks of one size is used: its neighbour is free, so it merges with that when it is
  // freed.
  events = {allocate(1, 5 * kMiB),
            allocate(2, 5 * kMiB),
            allocate(3, 5 * kMiB),
            allocate(4, 5 * kMiB),
            release(3),
            release(1),
            allocate(5, 5 * kMiB),
            release(2),
            allocate(6, 10 * kMiB)};
  EXPECT_EQ(used(events, false).reserved, 20 * kMiB);
}

// The end of an expandable segment counts as large as it can grow, so a larger block in the middle is used
// first.
TEST(Allocator, TheEndOfAnExpandableSegmentComesLast) {
  // 8 and 2 and 7 of 20; the end has 3. After the 8 is free, 2 more go there, and the end stays complete: it
  // needs one page more for 23.
  const std::vector<plan::Event> events = {allocate(1, 8 * kMiB), allocate(2, 2 * kMiB),
                                           allocate(3, 7 * kMiB), release(1),
                                           allocate(4, 2 * kMiB), allocate(5, 23 * kMiB)};
  EXPECT_EQ(used(events, true).reserved, 40 * kMiB);
}

// An expandable segment grows by the number of pages that its free end lacks.
TEST(Allocator, ExpandableSegmentsGrowAtTheirEnd) {
  EXPECT_EQ(used({allocate(1, 15 * kMiB), allocate(2, 25 * kMiB)}, true).reserved, 40 * kMiB);
  EXPECT_EQ(used({allocate(1, 15 * kMiB), allocate(2, 25 * kMiB + 512)}, true).reserved, 60 * kMiB);
  EXPECT_EQ(used({allocate(1, 20 * kMiB), allocate(2, 20 * kMiB + 512)}, true).reserved, 60 * kMiB);
  EXPECT_EQ(used({allocate(1, 20 * kMiB), release(1), allocate(2, 30 * kMiB)}, true).reserved, 40 * kMiB);
  EXPECT_EQ(used({allocate(1, 900 * 1024), allocate(2, 900 * 1024), allocate(3, 900 * 1024)}, true).reserved,
            4 * kMiB);
  EXPECT_EQ(used({allocate(1, 900 * 1024), allocate(2, 900 * 1024), allocate(3, 900 * 1024)}, false).reserved,
            4 * kMiB);
}

TEST(Allocator, OwnersAtThePeak) {
  using plan::Owner;
  const std::vector<plan::Event> events = {{1, 3 * kMiB, Owner::weights},     {2, 1000, Owner::batch},
                                           {3, 2 * kMiB, Owner::activations}, release(3),
                                           {3, kMiB, Owner::gradients},       {4, 512, Owner::states}};
  const plan::MemoryUse use = used(events, true);
  EXPECT_EQ(use.peak_event, 2);
  EXPECT_EQ(use.allocated, 5 * kMiB + 1024);
  EXPECT_EQ(use.owners[static_cast<std::size_t>(Owner::weights)], 3 * kMiB);
  EXPECT_EQ(use.owners[static_cast<std::size_t>(Owner::batch)], 1000);
  EXPECT_EQ(use.owners[static_cast<std::size_t>(Owner::activations)], 2 * kMiB);
  EXPECT_EQ(use.owners[static_cast<std::size_t>(Owner::gradients)], 0);
  EXPECT_EQ(use.owners[static_cast<std::size_t>(Owner::states)], 0);
  EXPECT_EQ(use.rounding, 24);
  EXPECT_EQ(name(Owner::master), "master");
  EXPECT_EQ(name(Owner::communication), "communication");
}

TEST(Allocator, NamesABadEvent) {
  const auto message = [](std::vector<plan::Event> events) {
    return plan::simulate(events).status().message();
  };
  EXPECT_EQ(message({allocate(7, 1), allocate(7, 1)}),
            "[plan] events[1].id: got 7, expected an id that is not allocated");
  EXPECT_EQ(message({allocate(7, 0), allocate(7, 0)}),
            "[plan] events[1].id: got 7, expected an id that is not allocated");
  EXPECT_EQ(message({allocate(7, 1), release(8)}), "[plan] events[1].id: got 8, expected an allocated id");
  EXPECT_EQ(message({allocate(7, 1), release(7), release(7)}),
            "[plan] events[2].id: got 7, expected an allocated id");
  EXPECT_THAT(message({{1, -2}}), HasSubstr("events[0].bytes: got -2, expected at least 0"));
  EXPECT_THAT(message({{1, 1, static_cast<plan::Owner>(8)}}),
              HasSubstr("events[0].owner: got 8, expected 0 to 7"));
  EXPECT_THAT(message({allocate(1, INT64_MAX)}), HasSubstr("less than 2^60 bytes in all"));
  EXPECT_THAT(message({allocate(1, 1), allocate(2, (std::int64_t{1} << 60) - kMiB)}),
              HasSubstr("events[1].bytes: got 1152921504605798400"));
  EXPECT_EQ(message({allocate(7, 1), release(7), allocate(7, 1), allocate(-7, 1)}), "");
}

TEST(Allocator, IsFast) {
  const std::vector<plan::Event> events = random_trace(1, 100000, 4000);
  for (const bool expandable : {false, true}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_GT(used(events, expandable).allocated, 0);
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
    std::cout << events.size() << " events: " << taken.count() << " ms\n";
  }
}

}  // namespace
}  // namespace test
