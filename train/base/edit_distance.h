// Finds the name that a misspelled word probably means.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace octavo_train {

// Returns the number of insertions, deletions, replacements and swaps of adjacent characters that turn `b`
// into `a`.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the name that is most similar to `word`, or the only name that begins with it. Returns an empty
// text if every name differs in more than a third of the characters of `word`.
std::string most_similar(std::string_view word, std::span<const std::string> names);

}  // namespace octavo_train
