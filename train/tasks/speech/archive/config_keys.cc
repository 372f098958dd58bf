// Reads and writes configs by a table of keys; see archive_keys.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/config_keys.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace octavo_train {
namespace {

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// Returns true if two values are equivalent: 0 equals 0.0, and False equals false.
bool same(const YamlNode& a, const YamlNode& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!same(a.items[i], b.items[i])) return false;
  }
  const auto first = number_of(a.text);
  const auto second = number_of(b.text);
  return first && second ? *first == *second : lower(a.text) == lower(b.text);
}

// Parses a value of a key table. REQUIRES: the text is valid YAML.
YamlNode node_of(const std::string& text) {
  Result<YamlNode> node = read_yaml(text, {"", false});
  return node.ok() ? std::move(*node) : YamlNode();
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// Returns the keys as a JSON object. `prefix` is the number of leading characters of each path that name the
// object itself; `depth` is the object's nesting depth.
std::string object_of(std::span<const ExternalConfigKey> keys, const ExternalModelConfig& from,
                      std::size_t prefix, std::size_t depth) {
  const std::string indent(2 * depth, ' ');
  std::string out;
  for (std::size_t i = 0; i < keys.size();) {
    const std::string_view rest = std::string_view(keys[i].path).substr(prefix);
    const std::size_t dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    std::size_t end = i + 1;
    std::string value;
    if (dot == std::string_view::npos) {
      value = keys[i].write(from);
    } else {
      const std::string section = keys[i].path.substr(0, prefix + dot + 1);
      while (end < keys.size() && keys[end].path.starts_with(section)) ++end;
      value = object_of(keys.subspan(i, end - i), from, section.size(), depth + 1);
    }
    out += (out.empty() ? "" : ",\n") + indent + "  \"" + std::string(name) + "\": " + value;
    i = end;
  }
  return "{\n" + out + "\n" + indent + "}";
}

}  // namespace

ExternalConfigKey only(std::string path, std::string standard, std::string value) {
  auto read = [value, wanted = node_of(value)](const YamlNode& node,
                                               ExternalModelConfig& /*out*/) -> ForeignProblem {
    if (same(node, wanted)) return std::nullopt;
    return "got " + shown(node) + ", expected " + value + "; the model here has no other";
  };
  return {std::move(path), std::move(standard), std::move(read),
          [value](const ExternalModelConfig& /*from*/) { return value; }};
}

ExternalConfigKey class_name(std::string path, std::string value) {
  auto read = [value](const YamlNode& node, ExternalModelConfig& /*out*/) -> ForeignProblem {
    if (last_part(node.text) == last_part(value)) return std::nullopt;
    return "got " + shown(node) + ", expected " + value + ": it is another model";
  };
  return {std::move(path), "", std::move(read),
          [value](const ExternalModelConfig& /*from*/) { return '"' + value + '"'; }};
}

ExternalConfigKey left(std::string path, std::string standard, std::string value) {
  auto read = [path, value, wanted = node_of(value)](const YamlNode& node,
                                                     ExternalModelConfig& out) -> ForeignProblem {
    if (!same(node, wanted))
      out.notes.push_back(path + " is " + shown(node) + ", which the model here does not follow: it has " +
                          value);
    return std::nullopt;
  };
  return {std::move(path), std::move(standard), std::move(read),
          [value](const ExternalModelConfig& /*from*/) { return value; }};
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

const YamlNode* find_node(const YamlNode& root, std::string_view path) {
  const YamlNode* node = &root;
  while (!path.empty()) {
    const std::string_view name = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(name.size() + 1, path.size()));
    const YamlNode* next = nullptr;
    for (std::size_t i = 0; i < node->keys.size() && next == nullptr; ++i) {
      if (node->keys[i].text == name) next = &node->items[i];
    }
    if (next == nullptr) return nullptr;
    node = next;
  }
  return node;
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
    const YamlNode other = null_counts ? node_of(key.null_value) : node_of(key.standard);
    const ForeignProblem problem = key.read(given && !is_null ? *node : other, out);
    if (!problem) continue;
    const std::string place = node != nullptr ? at(source, node->place) : source.name;
    return Status::invalid(place + ": " + key.path + ": " + *problem +
                           (given ? "" : " (it is not there, which means that)"));
  }
  return {};
}

Status refuse_key(const YamlNode& root, const Source& source, std::string_view path,
                  std::string_view problem) {
  const YamlNode* node = find_node(root, path);
  return Status::invalid((node != nullptr ? at(source, node->place) : source.name) + ": " +
                         std::string(path) + ": " + std::string(problem));
}

Status check_heads(const YamlNode& root, const Source& source, std::string_view path,
                   const SpeechModelSettings& model) {
  if (model.width % model.heads == 0) return {};
  return refuse_key(
      root, source, path,
      std::to_string(model.heads) + " heads do not divide the width of " + std::to_string(model.width));
}

std::string write_keys(std::span<const ExternalConfigKey> keys, const ExternalModelConfig& from) {
  return object_of(keys, from, 0, 0) + "\n";
}

}  // namespace octavo_train
