// SPDX-License-Identifier: MIT
#include "train/base/word_diff.h"

#include "train/base/terminal_text.h"

namespace octavo_train {
namespace {

void add(std::string& line, const std::string& word, bool differs, std::string_view begin,
         std::string_view end) {
  if (!line.empty()) line += ' ';
  if (differs) line += begin;
  line += word;
  if (differs) line += end;
}

}  // namespace

WordDiff marked(const std::vector<AlignedWord>& alignment, const Marks& marks) {
  WordDiff out;
  for (const AlignedWord& word : alignment) {
    const bool differs = word.edit != Edit::none;
    if (word.edit != Edit::insertion)
      add(out.reference, marks.show(word.reference), differs, marks.missed, marks.missed_end);
    if (word.edit != Edit::deletion)
      add(out.hypothesis, marks.show(word.hypothesis), differs, marks.wrong, marks.wrong_end);
  }
  return out;
}

WordDiff diff_for_terminal(std::string_view reference, std::string_view hypothesis) {
  return marked(align_words(reference, hypothesis), {"[-", "-]", "{+", "+}", terminal_text});
}

}  // namespace octavo_train
