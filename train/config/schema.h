// Defines the keys of a config: one table for each task, from which reading, checking, printing and
// docs/config.md are derived. The keys of every run are in schema.cc; a task declares the others
// (task_config.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"

#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace octavo_train {

struct TaskConfig;

// A key that has its own value.
struct Setting {
  Type type;
  std::string_view fallback;                // the default, as YAML
  std::vector<std::string_view> also = {};  // names in other tools
  std::string_view also_below = {};         // another section in which the key may be given
  std::string_view option = {};             // the algorithms' option that it sets, if any (options.h)
  // The key's former name. It is still read, and automatic folders are still named after it, so that a
  // command finds the folder of its run.
  std::string_view formerly = {};
  bool omit_if_null = false;  // to_yaml() omits it if it is null
  bool not_saved = false;     // its content is copied to other keys, so it is not saved with a run
};

// A boolean spelling of one value of the key `target`. True sets `value`. False excludes `value`: if the
// target would have it, the target gets `otherwise`.
struct Switch {
  std::string_view target;
  std::string_view value;
  std::string_view otherwise;
  // For a switch that stands for several values of the target: returns true if the target's current value
  // agrees with true. A value that is given and agrees with the switch is kept. Null: only `value` agrees.
  bool (*agrees)(const Settings&) = nullptr;
};

// A key of another tool for a feature that is not built in. The values false and null are accepted, because
// they do not request the feature.
struct Refused {
  std::string_view reason;
  std::string_view of = {};  // the key that enables the feature, if this key is a detail of it; if that key
                             // is false, this key is accepted too
};

// Describes how a changed value affects a run that is resumed.
enum class Effect {
  experiment,  // it becomes another experiment
  content,     // a path: only the content of the files counts, which the task compares
  none,        // only the run's length, output or placement changes
};

struct Key {
  std::string_view path;  // section.name, or a name alone
  std::variant<Setting, Switch, Refused> role;
  std::string_view meaning;
  Effect effect = Effect::experiment;

  [[nodiscard]] std::string_view section() const {
    const auto dot = path.find('.');
    return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
  [[nodiscard]] std::string_view name() const { return path.substr(path.find('.') + 1); }
  [[nodiscard]] const Setting* setting() const { return std::get_if<Setting>(&role); }
  [[nodiscard]] bool makes_another_run() const {
    return setting() != nullptr && effect == Effect::experiment;
  }
};

inline constexpr std::size_t kNoKey = static_cast<std::size_t>(-1);

class Schema {
 public:
  // REQUIRES: the keys of a section are contiguous.
  explicit Schema(std::vector<Key> keys) : keys_(std::move(keys)) {}

  // Returns the keys in the order in which they are printed.
  [[nodiscard]] const std::vector<Key>& keys() const { return keys_; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  [[nodiscard]] const Key& operator[](std::size_t index) const { return keys_[index]; }
  // Returns kNoKey if no key has that path.
  [[nodiscard]] std::size_t index(std::string_view path) const;
  [[nodiscard]] const Setting* setting(std::string_view path) const;  // null if no setting has that path

 private:
  std::vector<Key> keys_;
};

// Sets a key to a value that this program defines, such as its default. The error is an error of the program.
Status set_value(const Key& key, std::string_view yaml, Settings& settings);

// Returns the keys of every run.
std::vector<Key> general_keys();
// Returns the keys of every run and of the task. Built once.
const Schema& schema_of(const TaskConfig& task);
// Returns the schema of settings that parse() or load() returned.
const Schema& schema_of(const Settings& settings);

// Returns the keys of the algorithms' options, which are made from their descriptions (options.cc).
std::vector<Key> option_keys();

// Limits that keep multiplied sizes within 64 bits. They are not recommendations.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxSteps = std::int64_t{1} << 48;
inline constexpr Range kPositive{.low = 0, .above = true};
inline constexpr Range kNotNegative{.low = 0};
inline constexpr Range kFraction{.low = 0, .high = 1, .below = true};

}  // namespace octavo_train
