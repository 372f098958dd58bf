// Traces of allocations, written by hand and random.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/plan.h>

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace test {

namespace plan = octavo::plan;

inline constexpr std::int64_t kMiB = 1 << 20;

inline plan::Event allocate(std::int64_t id, std::int64_t bytes) {
  return {id, bytes, plan::Owner::activations};
}
inline plan::Event release(std::int64_t id) { return {id, -1}; }

inline plan::MemoryUse used(const std::vector<plan::Event>& events, bool expandable) {
  octavo::Result<plan::MemoryUse> use = plan::simulate(events, {expandable});
  EXPECT_TRUE(use.ok()) << use.status().message();
  return use.ok() ? *use : plan::MemoryUse{};
}

// Sizes of every pool, many of them equal, with up to `most` ids at a time, which are reused.
inline std::vector<plan::Event> random_trace(unsigned seed, std::size_t count, std::size_t most) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(end));
  };
  std::vector<plan::Event> events;
  std::vector<std::int64_t> free, taken;
  for (std::size_t i = 0; i < most; ++i) free.push_back(static_cast<std::int64_t>(i));
  const auto move_one = [&](std::vector<std::int64_t>& from, std::vector<std::int64_t>& to) {
    std::swap(from[static_cast<std::size_t>(below(std::ssize(from)))], from.back());
    to.push_back(from.back());
    from.pop_back();
    return to.back();
  };
  bool fills = true;  // phases of allocating and freeing, like forward and backward passes
  while (events.size() < count) {
    if (below(200) == 0) fills = !fills;
    const bool takes = taken.empty() || (!free.empty() && (below(10) < 7) == fills);
    if (!takes) {
      events.push_back(release(move_one(taken, free)));
      continue;
    }
    std::int64_t bytes = 0;
    switch (below(6)) {
      case 0:
        bytes = below(3000);
        break;
      case 1:
        bytes = below(2 * kMiB);
        break;
      case 2:
        bytes = kMiB * below(12);
        break;
      case 3:
        bytes = kMiB / 2 * (1 + below(60));
        break;
      case 4:
        bytes = 512 * below(60000);
        break;
      default:
        bytes = 4 * kMiB;
        break;
    }
    const auto owner = static_cast<plan::Owner>(below(plan::kOwners));
    events.push_back({move_one(free, taken), bytes, owner});
  }
  return events;
}

}  // namespace test
