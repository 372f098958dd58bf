// Reads and writes configs by a table of keys; see foreign_config.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/foreign_config.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <set>

namespace octavo_train {
namespace {

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Returns true if two values are equivalent: 0 equals 0.0, and False equals false.
bool same(const YamlNode& a, const YamlNode& b) {
  if (a.kind != b.kind || !std::ranges::equal(a.items, b.items, same)) return false;
  const auto first = number_of(a.text), second = number_of(b.text);
  return first && second ? *first == *second : std::ranges::equal(a.text, b.text, {}, lower, lower);
}

// Parses a value of a key table. REQUIRES: the text is valid YAML.
YamlNode node_of(const std::string& text) {
  Result<YamlNode> node = read_yaml(text, {"", false});
  return node.ok() ? std::move(*node) : YamlNode();
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// Returns a function that writes a constant.
auto writes(std::string value) {
  return [value = std::move(value)](const ExternalModelConfig&) { return value; };
}

// Returns the keys as a JSON object. `prefix` is the number of leading characters of each path that name the
// object itself; `depth` is the object's nesting depth.
std::string object_of(std::span<const ExternalConfigKey* const> keys, const ExternalModelConfig& from,
                      std::size_t prefix, std::size_t depth) {
  const std::string indent(2 * depth, ' ');
  std::string out;
  std::set<std::string> sections;
  for (const ExternalConfigKey* key : keys) {
    const std::string_view rest = std::string_view(key->path).substr(prefix);
    const std::string_view name = rest.substr(0, rest.find('.'));
    std::string value;
    if (name == rest) {
      value = key->write(from);
    } else {
      const std::string section = key->path.substr(0, prefix + name.size() + 1);
      if (!sections.insert(section).second) continue;
      std::vector<const ExternalConfigKey*> inside;
      std::ranges::copy_if(keys, std::back_inserter(inside),
                           [&](const auto* each) { return each->path.starts_with(section); });
      value = object_of(inside, from, section.size(), depth + 1);
    }
    out += fmt::format("{}{}  \"{}\": {}", out.empty() ? "" : ",\n", indent, name, value);
  }
  return "{\n" + out + "\n" + indent + "}";
}

}  // namespace

ExternalConfigKey only(std::string path, std::string standard, std::string value) {
  auto read = [value, wanted = node_of(value)](const YamlNode& node, ExternalModelConfig&) -> ForeignProblem {
    if (same(node, wanted)) return std::nullopt;
    return fmt::format("got {}, expected {}; the model here has no other", shown(node), value);
  };
  return {std::move(path), std::move(standard), std::move(read), writes(value)};
}

ExternalConfigKey class_name(std::string path, std::string value) {
  auto read = [value](const YamlNode& node, ExternalModelConfig&) -> ForeignProblem {
    if (last_part(node.text) == last_part(value)) return std::nullopt;
    return fmt::format("got {}, expected {}: it is another model", shown(node), value);
  };
  return {std::move(path), "", std::move(read), writes('"' + value + '"')};
}

ExternalConfigKey left(std::string path, std::string standard, std::string value) {
  auto read = [path, value, wanted = node_of(value)](const YamlNode& node,
                                                     ExternalModelConfig& out) -> ForeignProblem {
    if (!same(node, wanted))
      out.notes.push_back(
          fmt::format("{} is {}, which the model here does not follow: it has {}", path, shown(node), value));
    return std::nullopt;
  };
  return {std::move(path), std::move(standard), std::move(read), writes(value)};
}

ExternalConfigKey with_null(ExternalConfigKey key, std::string value) {
  key.null_value = std::move(value);
  return key;
}

Codec<std::string> quoted_word(std::vector<std::string> words) {
  Codec<std::string> codec = word(std::move(words));
  codec.write = [](const std::string& value) { return '"' + value + '"'; };
  return codec;
}

const YamlNode* find_node(const YamlNode& root, std::string_view path, bool or_null) {
  const YamlNode* node = &root;
  while (!path.empty()) {
    const std::string_view name = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(name.size() + 1, path.size()));
    const auto found = std::ranges::find(node->keys, name, &YamlNode::text);
    if (found == node->keys.end()) return nullptr;
    node = &node->items[static_cast<std::size_t>(found - node->keys.begin())];
  }
  return or_null || node->kind != YamlNode::Kind::null ? node : nullptr;
}

std::string text_at(const YamlNode& root, std::string_view path) {
  const YamlNode* node = find_node(root, path);
  return node != nullptr && node->kind == YamlNode::Kind::scalar ? node->text : std::string();
}

Status read_keys(const YamlNode& root, const Source& source, std::span<const ExternalConfigKey> keys,
                 ExternalModelConfig& out) {
  for (const ExternalConfigKey& key : keys) {
    const YamlNode* node = find_node(root, key.path);
    const bool is_null = node != nullptr && node->kind == YamlNode::Kind::null;
    const bool null_counts = is_null && !key.null_value.empty();
    const bool given = node != nullptr && (!is_null || null_counts);
    if (!given && key.standard.empty())
      return Status::invalid(source.name + ": " + key.path + " is missing; it is another model");
    const YamlNode other = node_of(null_counts ? key.null_value : key.standard);
    const ForeignProblem problem = key.read(given && !is_null ? *node : other, out);
    if (problem)
      return refuse_key(root, source, key.path,
                        *problem + (given ? "" : " (it is not there, which means that)"));
  }
  return {};
}

Status refuse_key(const YamlNode& root, const Source& source, std::string_view path,
                  std::string_view problem) {
  const YamlNode* node = find_node(root, path);
  const std::string place = node != nullptr ? at(source, node->place) : source.name;
  return invalid_error("{}: {}: {}", place, path, problem);
}

Status check_heads(const YamlNode& root, const Source& source, std::string_view path,
                   const SpeechModelSettings& model) {
  if (model.width % model.heads == 0) return {};
  return refuse_key(root, source, path,
                    fmt::format("{} heads do not divide the width of {}", model.heads, model.width));
}

std::string write_keys(std::span<const ExternalConfigKey> keys, const ExternalModelConfig& from) {
  std::vector<const ExternalConfigKey*> all;
  for (const ExternalConfigKey& key : keys) all.push_back(&key);
  return object_of(all, from, 0, 0) + "\n";
}

}  // namespace octavo_train
