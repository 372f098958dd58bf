// See init_codec.h. This file also matches names against patterns (renamed() of init_settings.h).
// SPDX-License-Identifier: MIT
#include "train/config/init_codec.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace octavo_train {
namespace {

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
  std::string out;
  for (const Rename& rule : rules)
    out += (out.empty() ? "" : ", ") + quoted(rule.from) + ": " + quoted(rule.to);
  return "{" + out + "}";
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
