// Implements the codecs of values that are lists or mappings: training.groups, no_decay and init_rename. It
// also matches names against patterns (renamed() of settings.h).
// SPDX-License-Identifier: MIT
#include "train/config/codec.h"

#include "train/config/lookup.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace octavo_train {
namespace {

constexpr const char* kGroupsExpected =
    "a list of mappings such as [{params: \"encoder.*\", learning_rate: 1e-4}]";
constexpr const char* kPatternsExpected = "a pattern of names such as \"encoder.*\", or a list of them";

// A key of a group, and how it is read and written.
struct GroupKey {
  std::string_view name;
  std::string expected;
  std::function<bool(const YamlNode&, GroupSettings&)> read;
  std::function<std::string(const GroupSettings&)> write;  // returns an empty text if the key was not given
};

std::optional<std::vector<std::string>> patterns_in(const YamlNode& node) { return paths().read(node); }

template <class T>
GroupKey optional_key(std::string_view name, std::optional<T> GroupSettings::*member, Codec<T> codec) {
  auto read = [member, read = codec.read](const YamlNode& node, GroupSettings& group) {
    group.*member = read(node);
    return (group.*member).has_value();
  };
  auto write = [member, write = codec.write](const GroupSettings& group) {
    return group.*member ? write(*(group.*member)) : std::string();
  };
  return {name, std::move(codec.expected), std::move(read), std::move(write)};
}

const std::array<GroupKey, 5>& group_keys() {
  static const std::array<GroupKey, 5> keys = {
      {{"params", kPatternsExpected,
        [](const YamlNode& node, GroupSettings& group) {
          auto patterns = patterns_in(node);
          if (patterns) group.params = std::move(*patterns);
          return patterns.has_value();
        },
        [](const GroupSettings& group) { return paths().write(group.params); }},
       optional_key("weight_decay", &GroupSettings::weight_decay, real({.low = 0})),
       optional_key("learning_rate", &GroupSettings::learning_rate, real({.low = 0, .above = true})),
       optional_key("state", &GroupSettings::state, state_name()),
       optional_key("freeze", &GroupSettings::freeze, flag())}};
  return keys;
}

std::string names_of_keys() { return joined(group_keys(), ", ", &GroupKey::name); }

std::string unknown_key(std::string_view word) {
  const auto* const like = std::ranges::min_element(
      group_keys(), {}, [&](const GroupKey& key) { return edit_distance(word, key.name); });
  const bool near = word.size() < 64 && edit_distance(word, like->name) <= like->name.size() / 3 + 1;
  return "unknown key; " +
         (near ? "did you mean " + std::string(like->name) + "?" : "a group has " + names_of_keys());
}

// Returns the error of keys that contradict each other or have no effect; empty if there is none.
std::string contradiction(const GroupSettings& group) {
  if (group.params.empty()) return "it has no params; name its parameters: params: \"encoder.*\"";
  const bool trains = group.weight_decay || group.learning_rate || group.state;
  if (!trains && !group.freeze)
    return "it changes nothing; give one of weight_decay, learning_rate, state and freeze";
  if (trains && group.freeze == true)
    return "freeze is true, so its parameters take no steps; remove freeze, or the other keys";
  return {};
}

bool read_group(const YamlNode& node, const std::string& part, GroupSettings& group, Problem& problem) {
  if (node.kind != YamlNode::Kind::map) {
    problem = {node.place, part, "got " + shown(node) + ", expected a mapping with " + names_of_keys()};
    return false;
  }
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& word = node.keys[i].text;
    const auto* const key = std::ranges::find(group_keys(), word, &GroupKey::name);
    const std::string at = part + "." + shown(word);
    if (key == group_keys().end()) {
      problem = {node.keys[i].place, at, unknown_key(word)};
      return false;
    }
    if (!key->read(node.items[i], group)) {
      problem = {node.items[i].place, at, "got " + shown(node.items[i]) + ", expected " + key->expected};
      return false;
    }
  }
  const std::string against = contradiction(group);
  if (!against.empty()) problem = {node.place, part, against};
  return against.empty();
}

std::optional<std::vector<GroupSettings>> groups_in(const YamlNode& node, Problem& problem) {
  std::vector<GroupSettings> out;
  if (node.kind == YamlNode::Kind::null) return out;
  if (node.kind != YamlNode::Kind::list) {
    problem = {node.place, "", "got " + shown(node) + ", expected " + kGroupsExpected};
    return std::nullopt;
  }
  for (std::size_t i = 0; i < node.items.size(); ++i)
    if (!read_group(node.items[i], "[" + std::to_string(i) + "]", out.emplace_back(), problem))
      return std::nullopt;
  return out;
}

std::string group_text(const GroupSettings& group) {
  std::string out;
  for (const GroupKey& key : group_keys()) {
    const std::string value = key.write(group);
    if (!value.empty()) out += (out.empty() ? "" : ", ") + std::string(key.name) + ": " + value;
  }
  return "{" + out + "}";
}

constexpr char kAny = '*';

std::ptrdiff_t stars(std::string_view text) { return std::ranges::count(text, kAny); }

constexpr const char* kExpected = R"(a mapping of patterns such as {"encoder.*": "model.encoder.*"})";

// Returns the error of one entry; empty if the entry is valid.
std::string wrong(const YamlNode& from, const YamlNode& to) {
  if (to.kind != YamlNode::Kind::scalar || to.text.empty())
    return "got " + (to.text.empty() && to.kind == YamlNode::Kind::scalar ? "nothing" : shown(to)) +
           ", expected a name";
  if (from.text.empty()) return "the pattern is empty; \"*\" takes every name";
  if (stars(from.text) == stars(to.text)) return {};
  return "got " + shown(to.text) + " with " + std::to_string(stars(to.text)) + " of *, expected " +
         std::to_string(stars(from.text)) + ": each is what the one at the same place of the pattern took";
}

// Returns the first error; nullopt if the value is valid.
std::optional<Problem> first_problem(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::map)
    return Problem{node.place, "", "got " + shown(node) + ", expected " + kExpected};
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    std::string found = wrong(node.keys[i], node.items[i]);
    if (!found.empty()) return Problem{node.items[i].place, "." + shown(node.keys[i].text), std::move(found)};
  }
  return std::nullopt;
}

std::optional<std::vector<Rename>> read(const YamlNode& node) {
  std::vector<Rename> out;
  if (node.kind == YamlNode::Kind::null) return out;
  if (first_problem(node)) return std::nullopt;
  for (std::size_t i = 0; i < node.keys.size(); ++i) out.push_back({node.keys[i].text, node.items[i].text});
  return out;
}

// Returns the text in quotes. It is always quoted, because {a: b.*} is easily misread.
std::string quoted(const std::string& text) {
  const std::string out = yaml_text(text);
  return out.front() == '"' ? out : '"' + out + '"';
}

std::string write(const std::vector<Rename>& rules) {
  const auto text = [](const Rename& rule) { return quoted(rule.from) + ": " + quoted(rule.to); };
  return "{" + joined(rules, ", ", text) + "}";
}

// Returns true if the complete `name` matches. Appends the text that each * matched to `took`.
bool matches(std::string_view pattern, std::string_view name, std::vector<std::string_view>& took) {
  const std::size_t star = pattern.find(kAny);
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  const std::size_t depth = took.size();
  for (std::size_t size = 0; star + size <= name.size(); ++size) {
    took.resize(depth);
    took.push_back(name.substr(star, size));
    if (matches(pattern.substr(star + 1), name.substr(star + size), took)) return true;
  }
  took.resize(depth);
  return false;
}

}  // namespace

Codec<std::vector<GroupSettings>> parameter_groups() {
  auto read = [](const YamlNode& node) {
    Problem ignored;
    return groups_in(node, ignored);
  };
  auto write = [](const std::vector<GroupSettings>& groups) {
    return "[" + joined(groups, ", ", group_text) + "]";
  };
  auto problem = [](const YamlNode& node) {
    Problem out;
    groups_in(node, out);
    return out;
  };
  return {kGroupsExpected, read, write, {}, problem};
}

Codec<NoDecay> no_decay_choice() {
  auto read = [](const YamlNode& node) -> std::optional<NoDecay> {
    if (node.kind == YamlNode::Kind::scalar && node.plain && node.text == "auto")
      return NoDecay{NoDecay::Kind::automatic, {}};
    if (node.kind == YamlNode::Kind::null) return NoDecay{};
    if (node.kind == YamlNode::Kind::scalar && node.plain && node.text == "none") return NoDecay{};
    auto patterns = patterns_in(node);
    if (!patterns) return std::nullopt;
    return NoDecay{NoDecay::Kind::patterns, std::move(*patterns)};
  };
  auto write = [](const NoDecay& value) -> std::string {
    if (value.kind == NoDecay::Kind::automatic) return "auto";
    if (value.kind == NoDecay::Kind::none) return "none";
    const bool looks_plain = value.patterns == std::vector<std::string>{"auto"} ||
                             value.patterns == std::vector<std::string>{"none"};
    return looks_plain ? '"' + value.patterns[0] + '"' : paths().write(value.patterns);
  };
  return {std::string("auto, none, ") + kPatternsExpected, read, write};
}

Codec<std::vector<Rename>> renames() {
  return {kExpected, read, write, {}, [](const YamlNode& node) {
            return first_problem(node).value_or(Problem{});
          }};
}

std::optional<std::string> renamed(const Rename& rule, const std::string& name) {
  std::vector<std::string_view> took;
  if (!matches(rule.from, name, took)) return std::nullopt;
  std::string out;
  auto next = took.begin();
  for (const char c : rule.to) out += c == kAny ? std::string(*next++) : std::string(1, c);
  return out;
}

}  // namespace octavo_train
