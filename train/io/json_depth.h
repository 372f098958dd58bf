// Measures how deep the JSON of a file is nested. nlohmann's parser takes any depth, but copying and writing
// its values recurses and overflows the stack. Code that does either refuses deep files first.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace octavo_train {

inline constexpr std::size_t kDeepestJson = 200;  // deeper than any file of ours or Hugging Face

// Returns the largest number of arrays and objects that are open at the same place. For a text that is not
// JSON the number has no meaning.
inline std::size_t json_depth(std::string_view text) {
  std::size_t depth = 0, deepest = 0;
  bool inside = false;  // inside a string
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside && c == '\\')
      ++i;
    else if (c == '"')
      inside = !inside;
    else if (!inside && (c == '[' || c == '{'))
      deepest = std::max(deepest, ++depth);
    else if (!inside && (c == ']' || c == '}') && depth > 0)
      --depth;
  }
  return deepest;
}

}  // namespace octavo_train
