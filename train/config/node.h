// Reads YAML text into a tree whose nodes have their places in the text. Only node.cc uses the YAML library.
// YAML features that a config does not need (aliases, tags, several documents) are errors here, so later code
// need not handle them.
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

// Returns a value as errors show it: short, on one line.
std::string shown(const YamlNode& node);
std::string shown(std::string_view text);

// Returns a text as a YAML scalar that reads back as the same text.
std::string yaml_text(std::string_view text);

}  // namespace octavo_train
