// Lines of `NAME = value`, as Python scripts have their settings at the top: another way to write a flat
// config.
//
//   USE_4BIT_OPTIMIZER = True
//   COMPUTE_DTYPE = "bfloat16"  # a comment
//
// They become YAML with everything in its place, so errors name the line and the column of the file. No line
// gets another meaning that YAML has one for.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octavo::train {

// Whether the first line that is neither empty nor a comment is an assignment.
bool has_assignments(std::string_view text);

struct CodeLine {
  int line;  // from 1
  std::string_view text;
};

// Returns the first Python statement; nullopt if there is none. A statement is a line with an import, a
// definition, a condition or loop, a call, a decorator or a docstring. No config has one.
std::optional<CodeLine> find_code(std::string_view text);

// Returns a line of the text without its line break and the blanks before and after; empty after the last
// line.
CodeLine line_of(std::string_view text, int number);

// The text with `NAME : value` for each such line, and null for None. Other lines stay as they are: those of
// a list over several lines, for example. A value without a space before it moves by one column.
std::string assignments_as_yaml(std::string_view text);

}  // namespace octavo::train
