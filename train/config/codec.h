// The types that a key can have. A codec reads a value from a YamlNode, writes it as YAML that reads back as
// the same value, and says in words what it accepts; a key's Type is a codec bound to a field of Settings.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/node.h"
#include "train/config/settings.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo::train {

// What is wrong with a part of a value: "[1].state" at its place, "got 9bit, expected one of …".
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
  // For a value that another tool takes: what to write instead. Empty where there is nothing to say.
  std::function<std::string(const YamlNode&)> advice = {};
  // For a value with parts: which one is wrong. Only asked where `read` gives nothing.
  std::function<Problem(const YamlNode&)> problem = {};
  // The paths in a value, where the type has any: see paths.h.
  std::function<std::vector<std::string*>(T&)> paths = {};
  bool makes_paths = false;  // the run makes them; it does not read them
};

struct Range {
  double low;
  double high = std::numeric_limits<double>::infinity();
  bool above = false;  // low itself is not allowed
  bool below = false;  // high itself is not allowed
};

// The first name is written; all names are read.
template <class E>
struct Spelling {
  E value;
  std::string_view name;
  std::string_view also = {};
};

Codec<bool> flag();
Codec<std::int64_t> integer(std::int64_t low, std::int64_t high);
Codec<std::int64_t> count_or_all();  // -1 is all
Codec<std::int64_t> batch_rows();    // `auto` is kNoLimit
Codec<std::int64_t> byte_size();     // a number, or one with a unit: 8 GB
Codec<double> real(Range range);
Codec<std::string> text(std::string expected);            // any, such as a name
Codec<std::string> path();                                // to be read
Codec<std::string> new_path();                            // to be made
Codec<std::string> word(std::vector<std::string> words);  // one of them
Codec<std::vector<std::string>> paths();                  // one or a list
Codec<std::vector<std::int64_t>> stage_sizes();           // rising; -1 (all) may be the last
Codec<OptimizerName> optimizer_name();
// Returns whether a name is that of one of bitsandbytes' paged optimizers, which begin with `paged`.
bool is_paged_name(const YamlNode& node);
Codec<DeviceName> device_name();
Codec<Resume> resume_choice();

template <class E>
Codec<E> choice(std::vector<Spelling<E>> spellings) {
  std::string expected;
  for (const auto& spelling : spellings) {
    const bool last = &spelling == &spellings.back();
    expected += (expected.empty() ? "" : last ? " or " : ", ") + std::string(spelling.name);
  }
  auto read = [spellings](const YamlNode& node) -> std::optional<E> {
    if (node.kind != YamlNode::Kind::scalar) return std::nullopt;
    for (const auto& spelling : spellings) {
      if (node.text == spelling.name || (!spelling.also.empty() && node.text == spelling.also)) {
        return spelling.value;
      }
    }
    return std::nullopt;
  };
  auto write = [spellings](const E& value) {
    for (const auto& spelling : spellings) {
      if (spelling.value == value) return std::string(spelling.name);
    }
    return std::string("null");  // no reader gives a value without a name
  };
  return {std::move(expected), std::move(read), std::move(write)};
}

struct Type {
  std::string expected;
  std::function<bool(const YamlNode&, Settings&)>
      set;  // returns false and sets nothing where the value is not what is expected
  std::function<std::string(const Settings&)> show;
  std::function<std::string(const YamlNode&)> advice = {};         // may be empty
  std::function<Problem(const YamlNode&)> problem = {};            // may be empty
  std::function<std::vector<std::string*>(Settings&)> paths = {};  // may be empty; as a codec has them
  bool makes_paths = false;
};

// The section that a field belongs to, of a Settings or of a const one.
template <class Section, class S>
auto& section_of(S& settings) {
  if constexpr (std::is_same_v<Section, Settings>) {
    return settings;
  } else if constexpr (std::is_same_v<Section, ModelSettings>) {
    return settings.model;
  } else if constexpr (std::is_same_v<Section, DataSettings>) {
    return settings.data;
  } else if constexpr (std::is_same_v<Section, TrainingSettings>) {
    return settings.training;
  } else if constexpr (std::is_same_v<Section, Fp8Settings>) {
    return settings.training.fp8;
  } else if constexpr (std::is_same_v<Section, fp8::Settings>) {
    return settings.training.fp8.recipe;
  } else {
    return settings.own.template get<Section>();
  }
}

// The paths of a field: of its value, where it has one.
template <class Section, class Field, class T>
std::function<std::vector<std::string*>(Settings&)> paths_of(Field Section::*member, const Codec<T>& codec) {
  if (!codec.paths) return {};
  return [member, paths = codec.paths](Settings& settings) -> std::vector<std::string*> {
    Field& value = section_of<Section>(settings).*member;
    if constexpr (std::is_same_v<Field, T>) {
      return paths(value);
    } else {
      return value ? paths(*value) : std::vector<std::string*>();
    }
  };
}

template <class Section, class T>
Type field(T Section::*member, Codec<T> codec) {
  auto set = [member, read = codec.read](const YamlNode& node, Settings& settings) {
    std::optional<T> value = read(node);
    if (!value) return false;
    section_of<Section>(settings).*member = std::move(*value);
    return true;
  };
  auto show = [member, write = codec.write](const Settings& settings) {
    return write(section_of<Section>(settings).*member);
  };
  return {std::move(codec.expected), std::move(set),          std::move(show),  std::move(codec.advice),
          std::move(codec.problem),  paths_of(member, codec), codec.makes_paths};
}

// An optional field also takes null, and the word that other tools use for it (`none`, unquoted).
template <class Section, class T>
Type field(std::optional<T> Section::*member, Codec<T> codec, std::string_view none = "") {
  auto set = [member, read = codec.read, none](const YamlNode& node, Settings& settings) {
    const bool is_none =
        node.kind == YamlNode::Kind::scalar && node.plain && !none.empty() && node.text == none;
    std::optional<T> value;
    if (node.kind != YamlNode::Kind::null && !is_none) {
      value = read(node);
      if (!value) return false;
    }
    section_of<Section>(settings).*member = std::move(value);
    return true;
  };
  auto show = [member, write = codec.write](const Settings& settings) {
    const auto& value = section_of<Section>(settings).*member;
    return value ? write(*value) : std::string("null");
  };
  return {codec.expected + ", or null" + (none.empty() ? "" : " (also " + std::string(none) + ")"),
          std::move(set),
          std::move(show),
          std::move(codec.advice),
          std::move(codec.problem),
          paths_of(member, codec),
          codec.makes_paths};
}

}  // namespace octavo::train
