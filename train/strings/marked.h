// What was said beside what was heard, with the words that differ marked: for terminals, pages and
// TensorBoard. Marks are signs or elements around words, never colour alone.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/strings/align.h"

#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// How a medium shows words.
struct Marks {
  std::string_view missed, missed_end;  // around a word of the reference that was not heard, or not so
  std::string_view wrong, wrong_end;    // around a word of the hypothesis that was not said
  std::string (*show)(std::string_view word);
};

// The words of each side, with a blank between two.
struct MarkedPair {
  std::string reference, hypothesis;
};
MarkedPair marked(const std::vector<AlignedWord>& alignment, const Marks& marks);

// For a terminal, in git's signs for words: [-missed-] and {+wrong+}.
MarkedPair marked_for_terminal(std::string_view reference, std::string_view hypothesis);

}  // namespace octavo::train
