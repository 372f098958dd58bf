// SPDX-License-Identifier: MIT
#include "train/base/word_diff.h"

#include "train/base/terminal_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

namespace octavo_train {
namespace {

// Non-ASCII whitespace as UTF-8. The first byte of a character is never a continuation byte, so bytes can be
// compared at any position, even if the text is not valid UTF-8.
constexpr std::array<std::string_view, 19> kSpaces = {
    "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
    "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};

// Returns the number of bytes of the whitespace character at the start of the text; 0 if there is none.
std::size_t space_at(std::string_view text) {
  const char c = text.front();
  if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f')) return 1;
  if (static_cast<signed char>(c) >= 0) return 0;
  const auto* const found =
      std::find_if(kSpaces.begin(), kSpaces.end(), [&](std::string_view s) { return text.starts_with(s); });
  return found == kSpaces.end() ? 0 : found->size();
}

using Words = std::vector<std::string_view>;

// Returns a table: at [i * (columns + 1) + j] is the last edit of the alignment of the first i words of
// `rows` with the first j words of `columns`.
std::vector<Edit> last_edits(const Words& rows, const Words& columns) {
  const std::size_t width = columns.size() + 1;
  std::vector<Edit> out((rows.size() + 1) * width, Edit::insertion);
  std::vector<std::int64_t> above(width), costs(width);
  std::iota(costs.begin(), costs.end(), 0);
  for (std::size_t i = 1; i <= rows.size(); ++i) {
    std::swap(above, costs);
    costs[0] = above[0] + 1;
    out[i * width] = Edit::deletion;
    for (std::size_t j = 1; j < width; ++j) {
      const bool same = rows[i - 1] == columns[j - 1];
      const std::int64_t pair = above[j - 1] + (same ? 0 : 1), without = std::min(above[j], costs[j - 1]) + 1;
      costs[j] = std::min(pair, without);
      if (pair <= without)
        out[i * width + j] = same ? Edit::none : Edit::substitution;
      else if (above[j] <= costs[j - 1])
        out[i * width + j] = Edit::deletion;
    }
  }
  return out;
}

void add(std::string& line, const std::string& word, bool differs, std::string_view begin,
         std::string_view end) {
  if (!line.empty()) line += ' ';
  if (differs) line += begin;
  line += word;
  if (differs) line += end;
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view text) {
  Words out;
  std::size_t word = 0, at = 0;
  const auto end_word = [&] {
    if (at > word) out.push_back(text.substr(word, at - word));
  };
  while (at < text.size()) {
    if (const std::size_t space = space_at(text.substr(at)); space > 0) {
      end_word();
      word = at += space;
    } else {
      ++at;
    }
  }
  end_word();
  return out;
}

std::vector<AlignedWord> align_words(std::string_view reference, std::string_view hypothesis) {
  const Words rows = split_words(reference), columns = split_words(hypothesis);
  const std::vector<Edit> edits = last_edits(rows, columns);
  std::vector<AlignedWord> out;
  for (std::size_t i = rows.size(), j = columns.size(); i > 0 || j > 0;) {
    AlignedWord word;
    word.edit = edits[i * (columns.size() + 1) + j];
    if (word.edit != Edit::insertion) word.reference = rows[--i];
    if (word.edit != Edit::deletion) word.hypothesis = columns[--j];
    out.push_back(word);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

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
