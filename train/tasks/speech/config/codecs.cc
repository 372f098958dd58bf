// Implements the codecs of codecs.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/config/codecs.h"

#include "train/config/schema.h"

#include <octavo/transducer.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace octavo_train {
namespace {

constexpr const char* kManifests =
    "the path of a manifest, a list of paths, or a list such as [{path: a.jsonl, weight: 2}, b.jsonl]";
constexpr double kSlowest = 0.5, kFastest = 2, kLoudest = 100;

// Reads a list with the codec of its items. Returns nullopt if it is not a list or an item is invalid.
template <class T>
std::optional<std::vector<T>> read_list(const YamlNode& node, const Codec<T>& codec) {
  std::vector<T> out;
  if (node.kind != YamlNode::Kind::list) return std::nullopt;
  for (const YamlNode& item : node.items) {
    const auto value = codec.read(item);
    if (!value) return std::nullopt;
    out.push_back(*value);
  }
  return out;
}

template <class T, class Write>
std::string list_text(const std::vector<T>& values, const Write& write) {
  std::string out;
  for (const T& each : values) out += (out.empty() ? "" : ", ") + write(each);
  return "[" + out + "]";
}

std::string numbers_text(const std::vector<double>& values) {
  return list_text(values, real({.low = -kLoudest}).write);
}

bool read_manifest(const YamlNode& node, const std::string& part, ManifestSource& out, Problem& problem) {
  const Codec<std::string> paths = path();
  const Codec<double> weights = real({.low = 0, .high = 1000, .above = true});
  const auto read = [&](const YamlNode& at, const std::string& name, const auto& codec, auto& value) {
    const auto found = codec.read(at);
    if (found) value = *found;
    if (!found) problem = {at.place, part + name, "got " + shown(at) + ", expected " + codec.expected};
    return found.has_value();
  };
  Codec<std::string> any = paths;
  any.expected = kManifests;
  if (node.kind != YamlNode::Kind::map) return read(node, "", any, out.path);
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const YamlNode& key = node.keys[i];
    const bool is_path = key.text == "path";
    if (!is_path && key.text != "weight") {
      problem = {key.place, part + "." + shown(key.text), "unknown key; a manifest has path and weight"};
      return false;
    }
    if (!(is_path ? read(node.items[i], ".path", paths, out.path)
                  : read(node.items[i], ".weight", weights, out.weight)))
      return false;
  }
  return !out.path.empty() || read(node, "", any, out.path);
}

std::optional<Manifests> read_manifests(const YamlNode& node, Problem& problem) {
  const bool list = node.kind == YamlNode::Kind::list;
  Manifests out(list ? node.items.size() : 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!read_manifest(list ? node.items[i] : node, list ? fmt::format("[{}]", i) : "", out[i], problem))
      return std::nullopt;
  }
  if (out.empty()) problem = {node.place, "", std::string("got an empty list, expected ") + kManifests};
  return out.empty() ? std::nullopt : std::optional(std::move(out));
}

std::string manifests_text(const Manifests& all) {
  const Codec<std::string> paths = path();
  const Codec<double> weights = real(kPositive);
  const bool plain = std::ranges::all_of(all, [](const ManifestSource& each) { return each.weight == 1; });
  if (plain && all.size() == 1) return paths.write(all[0].path);
  return list_text(all, [&](const ManifestSource& each) {
    const std::string text = paths.write(each.path);
    return plain ? text : fmt::format("{{path: {}, weight: {}}}", text, weights.write(each.weight));
  });
}

}  // namespace

Codec<std::vector<std::int64_t>> duration_list() {
  constexpr std::int64_t kLongest = 1000;
  constexpr auto kMost = static_cast<std::size_t>(octavo::kMaxTransducerDurations);
  auto read = [](const YamlNode& node) -> std::optional<std::vector<std::int64_t>> {
    const auto out = read_list(node, integer(0, kLongest));
    if (!out || out->size() > kMost || std::ranges::count(*out, 0) == std::ssize(*out)) return std::nullopt;
    for (const std::int64_t each : *out)
      if (std::ranges::count(*out, each) > 1) return std::nullopt;
    return out;
  };
  return {fmt::format(
              "a list of 1 to {} numbers from 0 to {}, such as [0, 1, 2, 3, 4], no two equal and one above 0",
              kMost, kLongest),
          read, [](const std::vector<std::int64_t>& values) {
            return list_text(values, [](std::int64_t value) { return std::to_string(value); });
          }};
}

Codec<std::int64_t> odd_number(std::int64_t high) {
  Codec<std::int64_t> codec = integer(1, high);
  codec.expected = fmt::format("an odd number from 1 to {}", high);
  codec.read = [any = codec.read](const YamlNode& node) {
    const auto value = any(node);
    return value && *value % 2 == 1 ? value : std::nullopt;
  };
  return codec;
}

Codec<Manifests> manifest_list() {
  auto read = [](const YamlNode& node) {
    Problem ignored;
    return read_manifests(node, ignored);
  };
  auto problem = [](const YamlNode& node) {
    Problem out;
    read_manifests(node, out);
    return out;
  };
  auto paths = [](Manifests& all) {
    std::vector<std::string*> out;
    for (ManifestSource& each : all) out.push_back(&each.path);
    return out;
  };
  return {kManifests, read, manifests_text, {}, problem, paths};
}

Codec<std::vector<double>> speed_list() {
  auto read = [](const YamlNode& node) -> std::optional<std::vector<double>> {
    if (node.kind == YamlNode::Kind::null) return std::vector<double>();
    return read_list(node, real({.low = kSlowest, .high = kFastest}));
  };
  return {"a list of numbers from 0.5 to 2 such as [0.9, 1.0, 1.1]; [] is none", read, numbers_text};
}

Codec<SnrRange> snr_range() {
  auto read = [](const YamlNode& node) -> std::optional<SnrRange> {
    const Codec<double> decibels = real({.low = -kLoudest, .high = kLoudest});
    if (const auto one = decibels.read(node)) return SnrRange{*one, *one};
    const auto both = read_list(node, decibels);
    if (!both || both->size() != 2 || both->front() > both->back()) return std::nullopt;
    return SnrRange{both->front(), both->back()};
  };
  auto write = [](const SnrRange& value) { return numbers_text({value.low, value.high}); };
  return {"a number of decibels from -100 to 100, or the lowest and the highest such as [10, 20]", read,
          write};
}

}  // namespace octavo_train
