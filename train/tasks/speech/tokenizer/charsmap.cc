// The map consists of the trie's size in bytes (32 bits, little-endian), the trie's 32-bit units in the
// layout of Darts-clone, and texts that end with a zero byte. A search begins at the base of unit 0. It reads
// the unit `base ^ byte` and continues at that unit's base if the unit's label is the byte. If the unit has
// the leaf flag, the unit at the new base has the offset of a text.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/charsmap.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::uint32_t kByteCount = 256;
constexpr std::uint8_t kMostLeaves = 32;  // on one path; the size of SentencePiece's result array

std::uint32_t number_at(std::string_view bytes, std::size_t place) {
  std::uint32_t out = 0;
  for (std::size_t i = 0; i < 4; ++i)
    out |= std::uint32_t{static_cast<unsigned char>(bytes[place + i])} << (8 * i);
  return out;
}

struct Unit {
  std::uint32_t bits;

  [[nodiscard]] bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  [[nodiscard]] std::uint32_t text() const { return bits & 0x7FFFFFFF; }
  [[nodiscard]] std::uint32_t label() const {
    return bits & 0x800000FF;
  }  // above 255 in a unit with a text's offset
  [[nodiscard]] std::uint32_t offset() const { return bits >> 10 << ((bits & 0x200) >> 6); }
};

// Visits all bases that a search can reach, depth first, each once.
class Walk {
 public:
  Walk(std::string_view units, std::string_view texts)
      : units_(units), texts_(texts), leaves_(units.size() / 4, kNew) {}

  // Returns a description of the first error in the trie, or an empty text.
  std::string problem() {
    if (leaves_.empty()) return "its trie is empty";
    std::string wrong = enter(unit(0).offset());
    while (wrong.empty() && !open_.empty()) wrong = open_.back().next < kByteCount ? visit_next_byte() : leave();
    return wrong;
  }

 private:
  static constexpr std::uint8_t
      kNew = 255,
      kOpen = 254;  // other values: the largest number of leaves on a path from the base

  struct Step {
    std::uint32_t base;
    std::uint32_t next = 0;   // the byte that is checked next
    std::uint8_t leaf = 0;    // 1: the child that was entered last has a leaf
    std::uint8_t leaves = 0;  // the largest number on a path through the children so far
  };

  [[nodiscard]] Unit unit(std::uint32_t place) const { return {number_at(units_, std::size_t{4} * place)}; }
  [[nodiscard]] std::string outside(std::uint32_t place) const {
    return "its trie leads to unit " + std::to_string(place) + " of " + std::to_string(leaves_.size());
  }

  std::string enter(std::uint32_t base) {
    // Any byte may follow, so a block of 256 units must be inside the trie.
    if ((base | (kByteCount - 1)) >= leaves_.size()) return outside(base | (kByteCount - 1));
    if (leaves_[base] == kOpen) return "its trie has a cycle";
    if (leaves_[base] != kNew) return count(leaves_[base]);
    leaves_[base] = kOpen;
    open_.push_back({base});
    return "";
  }

  std::string visit_next_byte() {
    Step& step = open_.back();
    const std::uint32_t byte = step.next++, place = step.base ^ byte;
    const Unit child = unit(place);
    if (child.label() != byte) return "";
    const std::uint32_t base = place ^ child.offset();
    step.leaf = child.has_leaf() ? 1 : 0;
    if (child.has_leaf() && base < leaves_.size() && unit(base).text() >= texts_.size()) {
      return "its trie refers to byte " + std::to_string(unit(base).text()) + " of the " +
             std::to_string(texts_.size()) + " bytes of texts";
    }
    return enter(base);
  }

  std::string leave() {
    const Step done = open_.back();
    open_.pop_back();
    leaves_[done.base] = done.leaves;
    return open_.empty() ? "" : count(done.leaves);
  }

  // Adds the child that was entered last, which has at most `leaves` leaves on a path.
  std::string count(std::uint8_t leaves) {
    Step& step = open_.back();
    step.leaves = std::max(step.leaves, static_cast<std::uint8_t>(leaves + step.leaf));
    if (step.leaves <= kMostLeaves) return "";
    return "its trie has more than " + std::to_string(kMostLeaves) + " texts on one path";
  }

  std::string_view units_, texts_;
  std::vector<std::uint8_t> leaves_;  // by base
  std::vector<Step> open_;
};

}  // namespace

Status check_charsmap(std::string_view charsmap) {
  if (charsmap.empty()) return {};
  const auto wrong = [](const std::string& what) {
    return Status::invalid("its precompiled_charsmap is damaged: " + what);
  };
  constexpr std::size_t kHeader = 4;
  if (charsmap.size() <= kHeader) return wrong("it has " + std::to_string(charsmap.size()) + " bytes");
  const std::size_t size = number_at(charsmap, 0);
  if (size % 4 != 0 || size > charsmap.size() - kHeader) {
    return wrong("its trie has " + std::to_string(size) + " bytes, expected a multiple of 4 up to " +
                 std::to_string(charsmap.size() - kHeader));
  }
  const std::string_view texts = charsmap.substr(kHeader + size);
  if (!texts.empty() && texts.back() != '\0') return wrong("its last text has no end");
  const std::string what = Walk(charsmap.substr(kHeader, size), texts).problem();
  return what.empty() ? Status() : wrong(what);
}

}  // namespace octavo_train
