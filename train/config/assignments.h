// Reads a flat config written as lines of `NAME = value`, like the settings at the top of a Python script.
//
//   USE_4BIT_OPTIMIZER = True
//   COMPUTE_DTYPE = "bfloat16"  # a comment
//
// The lines are converted to YAML and keep their places, so errors name the line and the column of the file.
// A line that already has a meaning in YAML keeps it.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octavo_train {

// Returns true if the first line that is neither empty nor a comment is an assignment.
bool has_assignments(std::string_view text);

struct CodeLine {
  int line;  // counted from 1
  std::string_view text;
};

// Returns the first Python statement; nullopt if there is none. A statement is a line with an import, a
// definition, a condition or loop, a call, a decorator or a docstring. No config has one.
std::optional<CodeLine> find_code(std::string_view text);

// Returns line `number` of the text (counted from 1) without leading and trailing whitespace. The text is
// empty after the last line.
CodeLine line_of(std::string_view text, int number);

// Converts each assignment `NAME = value` to `NAME : value`, and a value None to null. Other lines are
// unchanged, for example the lines of a list that spans several lines. A value without a space before it
// moves by one column.
std::string assignments_as_yaml(std::string_view text);

}  // namespace octavo_train
