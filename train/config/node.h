// A YAML text as a tree that remembers where everything stood. node.cc alone knows the YAML library; what a
// config does not need (aliases, tags, several documents) is an error here, so later code need not handle it.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// Where a text comes from. Columns count bytes; lines and columns start at 1.
struct Source {
  std::string name;     // a file's name, or "command line"
  bool is_file = true;  // only a file has lines
};
struct TextPlace {
  int line = 1;
  int column = 1;
};
std::string at(const Source& source, TextPlace place);  // run.yaml:7:3

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text = {};  // of a scalar
  bool plain = false;     // of a scalar: not quoted, so that 1 is a number and true a bool
  TextPlace place = {};
  std::vector<YamlNode> keys = {};   // of a map: scalars, as written; keys[i] has the value items[i]
  std::vector<YamlNode> items = {};  // of a list or a map
};

inline constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;

// Returns the text's only document; an empty text is null. Sets `*not_yaml` to the place of an error in the
// syntax of YAML, and leaves it empty for all other errors.
Result<YamlNode> read_yaml(std::string_view text, const Source& source,
                           std::optional<TextPlace>* not_yaml = nullptr);

// A value as an error shows it: short, on one line.
std::string shown(const YamlNode& node);
std::string shown(std::string_view text);

// A text as a YAML scalar that reads back as that text.
std::string yaml_text(std::string_view text);

}  // namespace octavo::train
