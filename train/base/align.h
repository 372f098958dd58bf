// Aligns the words of a reference with the words of a hypothesis. Words are separated by whitespace,
// including Unicode whitespace (as in Python's str.split()). Case and punctuation count.
//
// The alignment has the fewest edits. If several alignments do, ties are resolved from the end of the text: a
// pair of words is preferred to a deletion, and a deletion to an insertion. So the result is the same on
// every machine.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace octavo_train {

// Returns the words of UTF-8 text, as views of the text.
std::vector<std::string_view> split_words(std::string_view text);

enum class Edit : std::uint8_t { none, substitution, deletion, insertion };

struct AlignedWord {
  Edit edit = Edit::none;
  std::string_view reference;   // empty for an insertion
  std::string_view hypothesis;  // empty for a deletion
  friend bool operator==(const AlignedWord&, const AlignedWord&) = default;
};

// Returns the alignment in the order of the text. Time and memory are proportional to the number of reference
// words times the number of hypothesis words.
std::vector<AlignedWord> align_words(std::string_view reference, std::string_view hypothesis);

}  // namespace octavo_train
