// Defines the types that a key can have. A codec reads a value from a YamlNode, writes it as YAML that reads
// back as the same value, and describes what it accepts. A key's Type is a codec bound to a field of
// Settings.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/text.h"
#include "train/config/settings.h"
#include "train/config/yaml.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo_train {

// The error in one part of a value: its place, the part ("[1].state") and the message ("got 9bit, expected
// one of …").
struct Problem {
  TextPlace place;
  std::string part;
  std::string message;
};

template <class T>
struct Codec {
  std::string expected;  // "an integer from 1 to 8", after "expected "
  std::function<std::optional<T>(const YamlNode&)> read;
  std::function<std::string(const T&)> write;
  // Returns advice for a value that another tool accepts: what to write instead. Empty for other values.
  std::function<std::string(const YamlNode&)> advice = {};
  // For a value with parts: returns the error of the part that is wrong. Called only if `read` fails.
  std::function<Problem(const YamlNode&)> problem = {};
  // Returns pointers to the paths in a value. Empty if the type contains no paths (paths.h).
  std::function<std::vector<std::string*>(T&)> paths = {};
  bool makes_paths = false;  // the run creates these paths; it does not read them
};

struct Range {
  double low;
  double high = std::numeric_limits<double>::infinity();
  bool above = false;  // low itself is not allowed
  bool below = false;  // high itself is not allowed
};

// A value and its names. `name` is written; both names are read.
template <class E>
struct Spelling {
  E value;
  std::string_view name;
  std::string_view also = {};
};

// Returns true for the word without quotes.
inline bool is_word(const YamlNode& node, std::string_view word) {
  return node.kind == YamlNode::Kind::scalar && node.plain && node.text == word;
}

Codec<bool> flag();
Codec<std::int64_t> integer(std::int64_t low, std::int64_t high);
Codec<std::int64_t> count_or_all();  // -1 means all
Codec<std::int64_t> batch_rows();    // `auto` is kNoLimit
Codec<std::int64_t> byte_size();     // a number, optionally with a unit: 8 GB
Codec<double> real(Range range);
Codec<std::string> text(std::string expected);            // any text, such as a name
Codec<std::string> path();                                // a path that the run reads
Codec<std::string> new_path();                            // a path that the run creates
Codec<std::string> word(std::vector<std::string> words);  // one of `words`
Codec<std::vector<std::string>> paths();                  // one path or a list of paths
Codec<std::vector<std::int64_t>> stage_sizes();           // ascending; only the last may be -1 (all)
Codec<OptimizerName> optimizer_name();
// Returns true for a name of one of bitsandbytes' paged optimizers, which begin with `paged`.
bool is_paged_name(const YamlNode& node);
Codec<DeviceName> device_name();
// Accepts a state format by its name or an alias, with or without separators.
Codec<octavo::StateFormat> state_name();
// The values of training.groups, no_decay and init_rename. Errors name the part that is wrong and its place,
// because "got a list, expected …" does not help with a long list of mappings.
Codec<std::vector<GroupSettings>> parameter_groups();
Codec<NoDecay> no_decay_choice();
Codec<std::vector<Rename>> renames();  // a mapping of patterns, in the order of the file
Codec<Resume> resume_choice();

template <class E>
Codec<E> choice(std::vector<Spelling<E>> spellings) {
  std::string expected = alternatives(spellings, &Spelling<E>::name);
  auto read = [spellings](const YamlNode& node) -> std::optional<E> {
    if (node.kind != YamlNode::Kind::scalar) return std::nullopt;
    for (const auto& spelling : spellings)
      if (node.text == spelling.name || (!spelling.also.empty() && node.text == spelling.also))
        return spelling.value;
    return std::nullopt;
  };
  auto write = [spellings](const E& value) {
    for (const auto& spelling : spellings) {
      if (spelling.value == value) return std::string(spelling.name);
    }
    return std::string("null");  // unreachable: every value that is read has a name
  };
  return {std::move(expected), std::move(read), std::move(write)};
}

struct Type {
  std::string expected;
  std::function<bool(const YamlNode&, Settings&)>
      set;  // returns false and changes nothing if the value is not as expected
  std::function<std::string(const Settings&)> show;
  std::function<std::string(const YamlNode&)> advice = {};         // may be empty
  std::function<Problem(const YamlNode&)> problem = {};            // may be empty
  std::function<std::vector<std::string*>(Settings&)> paths = {};  // may be empty; see Codec::paths
  bool makes_paths = false;
};

// Returns the section that a field belongs to; const if `settings` is const.
template <class Section, class S>
auto& section_of(S& settings) {
  if constexpr (std::is_same_v<Section, Settings>)
    return settings;
  else if constexpr (std::is_same_v<Section, ModelSettings>)
    return settings.model;
  else if constexpr (std::is_same_v<Section, DataSettings>)
    return settings.data;
  else if constexpr (std::is_same_v<Section, TrainingSettings>)
    return settings.training;
  else if constexpr (std::is_same_v<Section, Fp8Settings>)
    return settings.training.fp8;
  else if constexpr (std::is_same_v<Section, octavo::fp8::Settings>)
    return settings.training.fp8.recipe;
  else
    return settings.task_settings.template get<Section>();
}

// Binds a field of type T or std::optional<T>. An optional field also accepts null and `none`: an unquoted
// word that other tools use for null.
template <class Section, class Field, class T>
Type field(Field Section::*member, Codec<T> codec, std::string_view none = "") {
  constexpr bool kOptional = !std::is_same_v<Field, T>;
  auto set = [member, read = codec.read, none](const YamlNode& node, Settings& settings) {
    Field& field = section_of<Section>(settings).*member;
    if constexpr (kOptional) {
      const bool is_none = node.plain && !none.empty() && node.text == none;
      if (node.kind == YamlNode::Kind::null || is_none) return field.reset(), true;
    }
    std::optional<T> value = read(node);
    if (value) field = std::move(*value);
    return value.has_value();
  };
  auto show = [member, write = codec.write](const Settings& settings) {
    const Field& field = section_of<Section>(settings).*member;
    if constexpr (kOptional)
      return field ? write(*field) : std::string("null");
    else
      return write(field);
  };
  std::function<std::vector<std::string*>(Settings&)> paths;
  if (codec.paths)
    paths = [member, paths = codec.paths](Settings& settings) -> std::vector<std::string*> {
      Field& field = section_of<Section>(settings).*member;
      if constexpr (kOptional)
        return field ? paths(*field) : std::vector<std::string*>();
      else
        return paths(field);
    };
  if (kOptional) codec.expected += ", or null" + (none.empty() ? "" : " (also " + std::string(none) + ")");
  return {std::move(codec.expected), std::move(set), std::move(show),  std::move(codec.advice),
          std::move(codec.problem),  paths,          codec.makes_paths};
}

}  // namespace octavo_train
