// Aligns the words of a reference with the words of a transcript (the hypothesis), and marks the words that
// differ, for terminals and TensorBoard. Words are separated by whitespace, including Unicode
// whitespace (as in Python's str.split()). Case and punctuation count.
//
// The alignment has the fewest edits. If several alignments do, ties are resolved from the end of the text: a
// pair of words is preferred to a deletion, and a deletion to an insertion. So the result is the same on
// every machine. Marks are characters around words, never colour alone.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
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

// Defines how a medium shows words.
struct Marks {
  std::string_view missed, missed_end;  // around a reference word that was substituted or deleted
  std::string_view wrong, wrong_end;    // around a hypothesis word that was substituted or inserted
  std::string (*show)(std::string_view word);
};

// The words of each side, separated by blanks.
struct WordDiff {
  std::string reference, hypothesis;
};
WordDiff marked(const std::vector<AlignedWord>& alignment, const Marks& marks);

// Marks words for a terminal as git's word diff does: [-missed-] and {+wrong+}.
WordDiff diff_for_terminal(std::string_view reference, std::string_view hypothesis);

}  // namespace octavo_train
