// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/wer.h"

#include <limits>

namespace octavo_train {

double WordErrors::rate() const {
  if (words > 0) return static_cast<double>(errors()) / static_cast<double>(words);
  return errors() == 0 ? 0.0 : std::numeric_limits<double>::infinity();
}

WordErrors& WordErrors::operator+=(const WordErrors& other) {
  substitutions += other.substitutions;
  deletions += other.deletions;
  insertions += other.insertions;
  words += other.words;
  return *this;
}

WordErrors count_errors(const std::vector<AlignedWord>& alignment) {
  WordErrors out;
  for (const AlignedWord& word : alignment) {
    out.substitutions += word.edit == Edit::substitution ? 1 : 0;
    out.deletions += word.edit == Edit::deletion ? 1 : 0;
    out.insertions += word.edit == Edit::insertion ? 1 : 0;
    out.words += word.edit == Edit::insertion ? 0 : 1;
  }
  return out;
}

WordErrors word_errors(std::string_view reference, std::string_view hypothesis) {
  return count_errors(align_words(reference, hypothesis));
}

}  // namespace octavo_train
