// The word error rate: edits between the words of a reference and of a hypothesis, summed over a set. Words
// are what whitespace separates, Unicode's included (as Python's str.split()); case and punctuation count. No
// LibTorch.
//
// The alignment is one with the fewest edits. Of several, it is the one that, read from the end, takes a pair
// of words where it can, else a deletion, else an insertion: so the counts are the same everywhere.
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

struct WordErrors {
  std::int64_t substitutions = 0, deletions = 0, insertions = 0;
  std::int64_t words = 0;  // of the references

  [[nodiscard]] std::int64_t errors() const { return substitutions + deletions + insertions; }
  // Errors per word; above 1 where there are many insertions. Without a word it is 0, or infinite where there
  // are errors.
  [[nodiscard]] double rate() const;
  WordErrors& operator+=(const WordErrors& other);
  friend bool operator==(const WordErrors&, const WordErrors&) = default;
};

WordErrors count_errors(const std::vector<AlignedWord>& alignment);
WordErrors word_errors(std::string_view reference, std::string_view hypothesis);

}  // namespace octavo::train
