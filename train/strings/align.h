// The words of a reference beside those of a hypothesis. Words are what whitespace separates, Unicode's
// included (as Python's str.split()); case and punctuation count.
//
// The alignment is one with the fewest edits. Of several, it is the one that, read from the end, takes a pair
// of words where it can, else a deletion, else an insertion: so it is the same everywhere.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace octavo::train {

// The words of UTF-8 text. They refer to it.
std::vector<std::string_view> split_words(std::string_view text);

enum class Edit : std::uint8_t { none, substitution, deletion, insertion };

struct AlignedWord {
  Edit edit = Edit::none;
  std::string_view reference;   // empty: an insertion
  std::string_view hypothesis;  // empty: a deletion
  friend bool operator==(const AlignedWord&, const AlignedWord&) = default;
};

// In the order of the text. Takes time and bytes in proportion to the product of the numbers of words.
std::vector<AlignedWord> align_words(std::string_view reference, std::string_view hypothesis);

}  // namespace octavo::train
