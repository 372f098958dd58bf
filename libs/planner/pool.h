// One of the two pools of torch's caching allocator, with its rules (c10/cuda/CUDACachingAllocator.cpp): the
// smallest free block that fits is used, the rest of it is split off, and free neighbours are merged. If none
// fits, a segment is added or the expandable one grows.
//
// Memory is never returned to the device: torch does so only if memory is short, or on request. The addresses
// that cudaMalloc chooses for segments cannot be predicted. They decide between free blocks of one size; here
// a later segment is at a higher address.
// SPDX-License-Identifier: MIT
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <vector>

namespace octavo::plan {

inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;
inline constexpr std::int64_t kStep = 512;
inline constexpr std::int64_t kSmall = kMiB;             // the largest small block
inline constexpr std::int64_t kSmallSegment = 2 * kMiB;  // and the pages of their expandable segment
inline constexpr std::int64_t kLargeSegment = 20 * kMiB;
inline constexpr std::int64_t kOwnSegment = 10 * kMiB;  // the smallest block that gets a segment of its size
inline constexpr std::int64_t kSegmentStep = 2 * kMiB;

inline std::int64_t rounded_up(std::int64_t bytes, std::int64_t step) {
  return (bytes + step - 1) / step * step;
}

class Pool {
 public:
  Pool(bool small, bool expandable) : small_(small), expandable_(expandable) {}

  // Returns the number of the allocated block.
  std::size_t allocate(std::int64_t bytes) {
    std::size_t found = fitting(bytes);
    if (found == kNone) found = expandable_ ? grow(bytes) : add_segment(bytes);
    const std::int64_t rest = blocks_[found].size - bytes;
    if (small_ || expandable_ ? rest >= kStep : rest > kSmall) split(found, bytes);
    blocks_[found].taken = true;
    return found;
  }

  void give_back(std::size_t block) {
    blocks_[block].taken = false;
    const std::size_t before = blocks_[block].before, after = blocks_[block].after;
    if (after != kNone && !blocks_[after].taken) {
      free_.erase(key(after));
      join(block, after);
    }
    if (before != kNone && !blocks_[before].taken) {
      free_.erase(key(before));
      join(before, block);
      block = before;
    }
    free_.insert(key(block));
  }

  [[nodiscard]] std::int64_t size(std::size_t block) const { return blocks_[block].size; }
  [[nodiscard]] std::int64_t reserved() const { return end_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Block {
    std::int64_t address = 0, size = 0;
    std::size_t before = kNone, after = kNone;  // in the same segment
    bool taken = false;
  };
  // Blocks of one size are used in the order of their addresses.
  struct Key {
    std::int64_t size, address;
    std::size_t block;
    auto operator<=>(const Key&) const = default;
  };
  [[nodiscard]] Key key(std::size_t block) const {
    return {blocks_[block].size, blocks_[block].address, block};
  }

  std::size_t fitting(std::int64_t bytes) {
    auto best = free_.lower_bound({bytes, 0, 0});
    if (best == free_.end()) return kNone;
    // The block at the end of an expandable segment counts as large as it can grow, so any other block is
    // used first.
    if (expandable_ && best->block == last_ && std::next(best) != free_.end()) ++best;
    const std::size_t found = best->block;
    free_.erase(best);
    return found;
  }

  std::size_t add_segment(std::int64_t bytes) {
    const std::int64_t size = small_                ? kSmallSegment
                              : bytes < kOwnSegment ? kLargeSegment
                                                    : rounded_up(bytes, kSegmentStep);
    const std::size_t added = make({end_, size, kNone, kNone, false});
    end_ += size;
    return added;
  }

  // An expandable segment grows by the number of pages that its free end lacks.
  std::size_t grow(std::int64_t bytes) {
    const std::int64_t page = small_ ? kSmallSegment : kLargeSegment;
    if (last_ != kNone && !blocks_[last_].taken) {
      free_.erase(key(last_));
      const std::int64_t more = rounded_up(bytes - blocks_[last_].size, page);
      blocks_[last_].size += more;
      end_ += more;
      return last_;
    }
    const std::int64_t size = rounded_up(bytes, page);
    const std::size_t added = make({end_, size, last_, kNone, false});
    if (last_ != kNone) blocks_[last_].after = added;
    last_ = added;
    end_ += size;
    return added;
  }

  void split(std::size_t block, std::int64_t bytes) {
    const Block whole = blocks_[block];
    const std::size_t rest = make({whole.address + bytes, whole.size - bytes, block, whole.after, false});
    blocks_[block].size = bytes;
    blocks_[block].after = rest;
    if (whole.after != kNone) blocks_[whole.after].before = rest;
    if (last_ == block) last_ = rest;
    free_.insert(key(rest));
  }

  void join(std::size_t block, std::size_t after) {
    blocks_[block].size += blocks_[after].size;
    blocks_[block].after = blocks_[after].after;
    if (blocks_[block].after != kNone) blocks_[blocks_[block].after].before = block;
    if (last_ == after) last_ = block;
    unused_.push_back(after);
  }

  std::size_t make(const Block& block) {
    if (unused_.empty()) {
      blocks_.push_back(block);
      return blocks_.size() - 1;
    }
    const std::size_t number = unused_.back();
    unused_.pop_back();
    blocks_[number] = block;
    return number;
  }

  bool small_, expandable_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> unused_;
  std::set<Key> free_;
  std::int64_t end_ = 0;      // the end of the addresses of all segments
  std::size_t last_ = kNone;  // the block at the end of the expandable segment
};

}  // namespace octavo::plan
