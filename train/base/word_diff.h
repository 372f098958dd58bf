// Marks the words that differ between a reference and its transcript (the hypothesis), for terminals and
// TensorBoard. Marks are characters around words, never colour alone.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/align.h"

#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

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
