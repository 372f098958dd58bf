// From what a user wrote to a key of the schema: nested or flat, lower or UPPER case, a name of another tool;
// and for what is no key, the nearest one.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace octavo::train {

struct Found {
  std::size_t key;      // position in schema(); kNoKey where the word is a section
  std::string section;  // the section, then
};

// `section` is the mapping that the word stands in, empty at the top: there a key may be flat, if only one
// section has it, or have its section before a dot. The error has no place: `training.learning_rat: unknown
// key; did you mean …`.
Result<Found> find_key(std::string_view section, std::string_view word);

// Insertions, deletions, replacements and swaps of neighbours that make `a` of `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace octavo::train
