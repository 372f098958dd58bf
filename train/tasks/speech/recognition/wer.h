// Computes the word error rate: the edits between the words of a reference and of a hypothesis
// (train/base/word_diff.h), summed over a set of clips. Does not use LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/word_diff.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace octavo_train {

struct WordErrors {
  std::int64_t substitutions = 0, deletions = 0, insertions = 0;
  std::int64_t words = 0;  // words of the references

  [[nodiscard]] std::int64_t errors() const { return substitutions + deletions + insertions; }
  // Returns the errors per word, which may exceed 1 if there are many insertions. Without reference words it
  // is 0, or infinite if there are errors.
  [[nodiscard]] double rate() const;
  WordErrors& operator+=(const WordErrors& other);
  friend bool operator==(const WordErrors&, const WordErrors&) = default;
};

WordErrors count_errors(const std::vector<AlignedWord>& alignment);
WordErrors word_errors(std::string_view reference, std::string_view hypothesis);

}  // namespace octavo_train
