// Finds the key of the schema that a user's word means: nested or flat, lower or UPPER case, or a name of
// another tool. For a word that is no key it finds the most similar key.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/schema.h"

#include <octavo/status.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace octavo::train {

struct Found {
  std::size_t key;      // position in the schema; kNoKey where the word is a section
  std::string section;  // the section, then
};

// `section` is the mapping that the word stands in, empty at the top: there a key may be flat, if only one
// section has it, or have its section before a dot. A section may have sections: the key
// model.encoder.d_model may stand in `encoder:` of `model:`, or be called encoder.d_model. The error has no
// place: `training.learning_rat: unknown key; did you mean …`.
//
// Suggest::no finds no similar key, which takes most of the time: for callers that do not show the error.
enum class Suggest { no, yes };
Result<Found> find_key(const Schema& schema, std::string_view section, std::string_view word,
                       Suggest suggest = Suggest::yes);

// UPPER_CASE is a spelling of a key: it becomes lower case. Mixed_Case is a mistake, to be reported as it was
// written.
std::string canonical_case(std::string_view word);

// The number of insertions, deletions, replacements and swaps of neighbours that turn `b` into `a`.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace octavo::train
