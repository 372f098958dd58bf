// The keys of a config: one table for each task, from which reading, checking, printing and docs/config.md
// are derived. What every run has is in schema.cc; a task declares the rest (task_config.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"

#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace octavo::train {

struct TaskConfig;

// A key with a value of its own.
struct Setting {
  Type type;
  std::string_view fallback;                // the default, as YAML
  std::vector<std::string_view> also = {};  // names that other tools give it
  std::string_view also_below = {};         // another section in which the key may be given
  std::string_view option = {};             // the algorithms' option that it sets, if any: see options.h
  bool brief = false;                       // to_yaml leaves it out where it is null
  bool spent = false;                       // other keys have what it says: it is not saved with a run
};

// A yes-or-no spelling of another key's value. true sets that value. false excludes it: a key that would have
// had it gets `otherwise`.
struct Switch {
  std::string_view target;
  std::string_view value;
  std::string_view otherwise;
  // For a switch that describes many values of the target: returns whether the present one is among those
  // that agree with true. A value that is given and agrees with the switch is kept. Null: only `value`
  // agrees.
  bool (*agrees)(const Settings&) = nullptr;
};

// A known key of another tool for a feature that is not built in. The values false and null ask for nothing.
struct Refused {
  std::string_view reason;
  std::string_view of = {};  // the key that asks for the feature, of which this is a detail; false there:
                             // nothing is asked here either
};

// What another value means to a run that goes on.
enum class Effect {
  experiment,  // it is not the same experiment any more
  content,     // a path: what is in the files counts, which the task compares
  none,        // the run is longer, or is written or placed otherwise
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
  // REQUIRES: the keys of a section lie together.
  explicit Schema(std::vector<Key> keys) : keys_(std::move(keys)) {}

  // In the order in which they are printed.
  [[nodiscard]] const std::vector<Key>& keys() const { return keys_; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  [[nodiscard]] const Key& operator[](std::size_t index) const { return keys_[index]; }
  // kNoKey where there is none of that path.
  [[nodiscard]] std::size_t index(std::string_view path) const;
  [[nodiscard]] const Setting* setting(std::string_view path) const;  // null where there is none

 private:
  std::vector<Key> keys_;
};

// What every run has.
std::vector<Key> general_keys();
// That and what the task declares; made once.
const Schema& schema_of(const TaskConfig& task);
// Of settings that parse() or load() gave.
const Schema& schema_of(const Settings& settings);

// The keys of the algorithms' options, made from their descriptions (options.cc).
std::vector<Key> option_keys();
// The keys below training.fp8 (fp8_keys.cc).
std::vector<Key> fp8_keys();

// Limits that keep products of sizes within 64 bits; they are not advice.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxSteps = std::int64_t{1} << 48;
inline constexpr Range kPositive{.low = 0, .above = true};
inline constexpr Range kNotNegative{.low = 0};
inline constexpr Range kFraction{.low = 0, .high = 1, .below = true};

}  // namespace octavo::train
