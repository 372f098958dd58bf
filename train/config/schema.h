// The keys of a config: one table, schema.cc, from which reading, checking, printing and docs/config.md are
// derived.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"

#include <string_view>
#include <variant>
#include <vector>

namespace octavo::train {

// A key with a value of its own.
struct Setting {
  Type type;
  std::string_view fallback;                // the default, as YAML
  std::vector<std::string_view> also = {};  // names that other tools give it
  std::string_view option = {};             // the algorithms' option that it sets, if any: see options.h
  bool brief = false;                       // to_yaml leaves it out where it is null
};

// A yes-or-no spelling of another key's value. true sets that value. false excludes it: a key that would have
// had it gets `otherwise`.
struct Switch {
  std::string_view target;
  std::string_view value;
  std::string_view otherwise;
};

// A known key of another tool for a feature that is not built in. The values false and null ask for nothing.
struct Refused {
  std::string_view reason;
};

struct Key {
  std::string_view path;  // section.name, or a name alone
  std::variant<Setting, Switch, Refused> role;
  std::string_view meaning;

  [[nodiscard]] std::string_view section() const {
    const auto dot = path.find('.');
    return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
  [[nodiscard]] std::string_view name() const { return path.substr(path.find('.') + 1); }
  [[nodiscard]] const Setting* setting() const { return std::get_if<Setting>(&role); }
  // Whether a run that goes on with another value is not the same experiment any more.
  [[nodiscard]] bool makes_another_run() const;
};

// In the order in which they are printed; the keys of a section lie together.
const std::vector<Key>& schema();

// The keys of the algorithms' options, made from their descriptions (options.cc).
std::vector<Key> option_keys();

// Positions in schema(). REQUIRES for key_index: `path` is a key's path.
inline constexpr std::size_t kNoKey = static_cast<std::size_t>(-1);
std::size_t key_index(std::string_view path);

}  // namespace octavo::train
