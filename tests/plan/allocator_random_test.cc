// Compares random traces with a second, independent simulation: a segment is a plain list of pieces in the
// order of addresses, and every search starts at its beginning.
// SPDX-License-Identifier: MIT
#include "tests/plan/traces.h"

#include <algorithm>
#include <list>
#include <map>

namespace test {
namespace {

struct Piece {
  std::int64_t size;
  std::int64_t id;  // -1: the piece is free
};
using Segment = std::list<Piece>;

class SlowPool {
 public:
  SlowPool(bool small, bool expandable) : small_(small), expandable_(expandable) {}

  // Returns the bytes of the allocated block.
  std::int64_t allocate(std::int64_t id, std::int64_t size) {
    auto [segment, piece] = find(size);
    if (segment == nullptr) std::tie(segment, piece) = more(size);
    const std::int64_t rest = piece->size - size;
    const bool splits = small_ || expandable_ ? rest >= 512 : rest > kMiB;
    if (splits) {
      segment->insert(std::next(piece), {rest, -1});
      piece->size = size;
    }
    piece->id = id;
    return piece->size;
  }

  std::int64_t release(std::int64_t id) {
    for (Segment& segment : segments_) {
      const auto found = std::find_if(segment.begin(), segment.end(), [&](auto& p) { return p.id == id; });
      if (found == segment.end()) continue;
      const std::int64_t size = found->size;
      found->id = -1;
      for (auto at = segment.begin(); at != segment.end();) {
        const auto next = std::next(at);
        if (next != segment.end() && at->id == -1 && next->id == -1) {
          at->size += next->size;
          segment.erase(next);
        } else {
          ++at;
        }
      }
      return size;
    }
    return 0;
  }

  [[nodiscard]] std::int64_t reserved() const {
    std::int64_t all = 0;
    for (const Segment& segment : segments_) {
      for (const Piece& piece : segment) all += piece.size;
    }
    return all;
  }

 private:
  using Place = std::pair<Segment*, Segment::iterator>;

  // Returns the smallest piece that fits. The end of an expandable segment has no limit.
  Place find(std::int64_t size) {
    Place best{nullptr, {}};
    std::int64_t least = 0;
    for (Segment& segment : segments_) {
      for (auto at = segment.begin(); at != segment.end(); ++at) {
        if (at->id != -1 || at->size < size) continue;
        const bool end = expandable_ && std::next(at) == segment.end();
        const std::int64_t counts = end ? INT64_MAX : at->size;
        if (best.first == nullptr || counts < least) {
          best = {&segment, at};
          least = counts;
        }
      }
    }
    return best;
  }

  Place more(std::int64_t size) {
    const auto up = [](std::int64_t bytes, std::int64_t step) {
      return bytes % step == 0 ? bytes : bytes + step - bytes % step;
    };
    if (!expandable_) {
      const std::int64_t bytes = small_ ? 2 * kMiB : size < 10 * kMiB ? 20 * kMiB : up(size, 2 * kMiB);
      segments_.push_back({{bytes, -1}});
      return {&segments_.back(), segments_.back().begin()};
    }
    if (segments_.empty()) segments_.emplace_back();
    Segment& segment = segments_.front();
    if (segment.empty() || segment.back().id != -1) segment.push_back({0, -1});
    segment.back().size += up(size - segment.back().size, small_ ? 2 * kMiB : 20 * kMiB);
    return {&segment, std::prev(segment.end())};
  }

  bool small_, expandable_;
  std::list<Segment> segments_;
};

plan::MemoryUse slow(const std::vector<plan::Event>& events, bool expandable) {
  SlowPool small(true, expandable), large(false, expandable);
  std::map<std::int64_t, plan::Event> live;
  std::int64_t now = 0;
  plan::MemoryUse use;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const plan::Event& event = events[i];
    if (event.bytes == -1) {
      now -= small.release(event.id) + large.release(event.id);
      live.erase(event.id);
      continue;
    }
    live[event.id] = event;
    if (event.bytes == 0) continue;
    const std::int64_t size = (event.bytes + 511) / 512 * 512;
    now += (size <= kMiB ? small : large).allocate(event.id, size);
    if (now <= use.allocated) continue;
    use.allocated = now;
    use.peak_event = static_cast<std::int64_t>(i);
    use.owners = {};
    for (const auto& [id, each] : live) use.owners[static_cast<std::size_t>(each.owner)] += each.bytes;
  }
  use.reserved = small.reserved() + large.reserved();
  return use;
}

TEST(AllocatorRandom, EqualsASlowSimulation) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    const std::vector<plan::Event> events = random_trace(seed, 1500, 20 + seed * 5);
    for (const bool expandable : {false, true}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", expandable " << expandable);
      const plan::MemoryUse found = used(events, expandable), expected = slow(events, expandable);
      ASSERT_EQ(found.allocated, expected.allocated);
      ASSERT_EQ(found.reserved, expected.reserved);
      ASSERT_EQ(found.peak_event, expected.peak_event);
      ASSERT_EQ(found.owners, expected.owners);
    }
  }
}

// Compares at every event of a trace, not only at its end.
TEST(AllocatorRandom, EqualsASlowSimulationOfEveryBeginning) {
  const std::vector<plan::Event> events = random_trace(99, 400, 40);
  for (std::size_t count = 0; count <= events.size(); ++count) {
    const std::vector<plan::Event> some(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count));
    for (const bool expandable : {false, true}) {
      const plan::MemoryUse found = used(some, expandable), expected = slow(some, expandable);
      ASSERT_EQ(found.allocated, expected.allocated) << count;
      ASSERT_EQ(found.reserved, expected.reserved) << count;
    }
  }
}

// Checks that expandable segments differ from plain ones on these traces; otherwise the tests above cover
// only one of them.
TEST(AllocatorRandom, TheRulesDiffer) {
  const std::vector<plan::Event> events = random_trace(7, 1500, 60);
  EXPECT_NE(used(events, true).reserved, used(events, false).reserved);
  EXPECT_LT(used(events, true).allocated, used(events, false).allocated);
}

}  // namespace
}  // namespace test
