// See init_codec.h; the matching of a name is here too, beside what the patterns may be.
// SPDX-License-Identifier: MIT
#include "train/config/init_codec.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace octavo::train {
namespace {

constexpr char kAny = '*';

std::ptrdiff_t stars(std::string_view text) { return std::ranges::count(text, kAny); }

// What is wrong with one entry; empty: nothing.
std::string problem(const YamlNode& from, const YamlNode& to) {
  const std::string entry = shown(from.text) + ": ";
  if (to.kind != YamlNode::Kind::scalar) return entry + "got " + shown(to) + ", expected a name";
  if (from.text.empty() || to.text.empty()) return entry + "a name is empty";
  if (stars(from.text) == stars(to.text)) return {};
  return entry + shown(to.text) + " has " + std::to_string(stars(to.text)) + " of *, expected " +
         std::to_string(stars(from.text)) + ": each is what the one at its place took";
}

std::string first_problem(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::map) return {};
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    if (std::string found = problem(node.keys[i], node.items[i]); !found.empty()) return found;
  }
  return {};
}

std::optional<std::vector<Rename>> read(const YamlNode& node) {
  std::vector<Rename> out;
  if (node.kind == YamlNode::Kind::null) return out;
  if (node.kind != YamlNode::Kind::map || !first_problem(node).empty()) return std::nullopt;
  for (std::size_t i = 0; i < node.keys.size(); ++i) out.push_back({node.keys[i].text, node.items[i].text});
  return out;
}

// Always quoted: {a: b.*} is easily misread.
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

// Whether the whole of `name` fits, and what each * took.
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
  return {R"(a mapping of patterns such as {"encoder.*": "model.encoder.*"})", read, write, first_problem};
}

std::optional<std::string> renamed(const Rename& rule, const std::string& name) {
  std::vector<std::string_view> took;
  if (!matches(rule.from, name, took)) return std::nullopt;
  std::string out;
  auto next = took.begin();
  for (const char c : rule.to) out += c == kAny ? std::string(*next++) : std::string(1, c);
  return out;
}

}  // namespace octavo::train
