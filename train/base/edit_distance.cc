// Implements edit_distance.h.
// SPDX-License-Identifier: MIT
#include "train/base/edit_distance.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace octavo_train {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before;  // two rows above
  std::vector<std::size_t> above;
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::move(above);
    above = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string most_similar(std::string_view word, std::span<const std::string> names) {
  std::string found;
  if (word.empty() || word.size() > 64) return found;
  const auto begins = [&](const std::string& name) { return name.starts_with(word); };
  if (word.size() > 2 && std::ranges::count_if(names, begins) == 1)
    return *std::ranges::find_if(names, begins);
  std::size_t best = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(word, name);
    if (distance >= best || distance >= name.size()) continue;
    best = distance;
    found = name;
  }
  return found;
}

}  // namespace octavo_train
