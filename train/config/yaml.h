// Reads the text of a config into a tree whose nodes have their places in the text. Only yaml.cc uses the
// YAML library. YAML features that a config does not need (aliases, tags, several documents) are errors here,
// so later code need not handle them.
//
// A config may also be flat lines of `NAME = value`, like the settings at the top of a Python script:
//
//   USE_4BIT_OPTIMIZER = True
//   COMPUTE_DTYPE = "bfloat16"  # a comment
//
// These lines are converted to YAML and keep their places, so errors name the line and the column of the
// file. A line that already has a meaning in YAML keeps it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// The origin of a text. Columns count bytes; lines and columns start at 1.
struct Source {
  std::string name;     // a file's name, or "command line"
  bool is_file = true;  // false: the command line, which has no line numbers
};
struct TextPlace {
  int line = 1;
  int column = 1;
};
std::string at(const Source& source, TextPlace place);  // run.yaml:7:3

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text = {};  // for a scalar
  bool plain = false;     // for a scalar: not quoted, so that 1 is a number and true a bool
  TextPlace place = {};
  std::vector<YamlNode> keys = {};   // for a map: scalars, as written; keys[i] has the value items[i]
  std::vector<YamlNode> items = {};  // for a list or a map
};

inline constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;

// Returns the text's only document; an empty text is null. Sets `*not_yaml` to the place of an error in the
// syntax of YAML, and leaves it empty for all other errors.
Result<YamlNode> read_yaml(std::string_view text, const Source& source,
                           std::optional<TextPlace>* not_yaml = nullptr);

// Reads a config of either form. The error for Python code contains a grep command that copies the settings
// of the script.
Result<YamlNode> read_config_text(std::string_view text, const Source& source);

// Returns true if the first line that is neither empty nor a comment is an assignment.
bool has_assignments(std::string_view text);

// Converts each assignment `NAME = value` to `NAME : value`, and a value None to null. Other lines are
// unchanged, for example the lines of a list that spans several lines. A value without a space before it
// moves by one column.
std::string assignments_as_yaml(std::string_view text);

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

// Returns a value as errors show it: short, on one line.
std::string shown(const YamlNode& node);
std::string shown(std::string_view text);

// Returns a text as a YAML scalar that reads back as the same text.
std::string yaml_text(std::string_view text);

}  // namespace octavo_train
