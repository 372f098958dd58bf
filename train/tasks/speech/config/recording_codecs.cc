// SPDX-License-Identifier: MIT
#include "train/tasks/speech/config/recording_codecs.h"

#include "train/config/schema.h"

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

constexpr const char* kManifests =
    "the path of a manifest, a list of paths, or a list such as [{path: a.jsonl, weight: 2}, b.jsonl]";
constexpr double kSlowest = 0.5, kFastest = 2, kLoudest = 100;

bool read_manifest(const YamlNode& node, const std::string& part, ManifestSource& out, Problem& problem) {
  const Codec<std::string> paths = path();
  const Codec<double> weights = real({.low = 0, .high = 1000, .above = true});
  const auto wrong = [&](const YamlNode& at, const std::string& name, const std::string& expected) {
    problem = {at.place, part + name, "got " + shown(at) + ", expected " + expected};
    return false;
  };
  if (node.kind != YamlNode::Kind::map) {
    const auto value = paths.read(node);
    if (!value) return wrong(node, "", kManifests);
    out.path = *value;
    return true;
  }
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& word = node.keys[i].text;
    const YamlNode& item = node.items[i];
    if (word == "path") {
      const auto value = paths.read(item);
      if (!value) return wrong(item, ".path", paths.expected);
      out.path = *value;
    } else if (word == "weight") {
      const auto value = weights.read(item);
      if (!value) return wrong(item, ".weight", weights.expected);
      out.weight = *value;
    } else {
      problem = {node.keys[i].place, part + "." + shown(word), "unknown key; a manifest has path and weight"};
      return false;
    }
  }
  return !out.path.empty() || wrong(node, "", kManifests);
}

std::optional<Manifests> manifests_in(const YamlNode& node, Problem& problem) {
  if (node.kind != YamlNode::Kind::list) {
    ManifestSource one;
    if (!read_manifest(node, "", one, problem)) return std::nullopt;
    return Manifests{std::move(one)};
  }
  Manifests out;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    if (!read_manifest(node.items[i], "[" + std::to_string(i) + "]", out.emplace_back(), problem))
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
  std::string out;
  for (const ManifestSource& each : all) {
    out += (out.empty() ? "" : ", ") +
           (plain ? paths.write(each.path)
                  : "{path: " + paths.write(each.path) + ", weight: " + weights.write(each.weight) + "}");
  }
  return "[" + out + "]";
}

// Reads a list of numbers with `codec`. Returns nullopt if it is not a list or an item is invalid.
std::optional<std::vector<double>> numbers_in(const YamlNode& node, const Codec<double>& codec) {
  std::vector<double> out;
  if (node.kind != YamlNode::Kind::list) return std::nullopt;
  for (const YamlNode& item : node.items) {
    const auto value = codec.read(item);
    if (!value) return std::nullopt;
    out.push_back(*value);
  }
  return out;
}

std::string numbers_text(const std::vector<double>& values) {
  const Codec<double> codec = real({.low = -kLoudest});
  std::string out;
  for (const double each : values) out += (out.empty() ? "" : ", ") + codec.write(each);
  return "[" + out + "]";
}

}  // namespace

Codec<Manifests> manifest_list() {
  auto read = [](const YamlNode& node) {
    Problem ignored;
    return manifests_in(node, ignored);
  };
  auto problem = [](const YamlNode& node) {
    Problem out;
    manifests_in(node, out);
    return out;
  };
  Codec<Manifests> codec = {kManifests, read, manifests_text, {}, problem};
  codec.paths = [](Manifests& all) {
    std::vector<std::string*> out;
    for (ManifestSource& each : all) out.push_back(&each.path);
    return out;
  };
  return codec;
}

Codec<std::vector<double>> speed_list() {
  auto read = [](const YamlNode& node) -> std::optional<std::vector<double>> {
    if (node.kind == YamlNode::Kind::null) return std::vector<double>();
    return numbers_in(node, real({.low = kSlowest, .high = kFastest}));
  };
  return {"a list of numbers from 0.5 to 2 such as [0.9, 1.0, 1.1]; [] is none", read, numbers_text};
}

Codec<SnrRange> snr_range() {
  auto read = [](const YamlNode& node) -> std::optional<SnrRange> {
    const Codec<double> decibels = real({.low = -kLoudest, .high = kLoudest});
    if (const auto one = decibels.read(node)) return SnrRange{*one, *one};
    const auto both = numbers_in(node, decibels);
    if (!both || both->size() != 2 || both->front() > both->back()) return std::nullopt;
    return SnrRange{both->front(), both->back()};
  };
  auto write = [](const SnrRange& value) { return numbers_text({value.low, value.high}); };
  return {"a number of decibels from -100 to 100, or the lowest and the highest such as [10, 20]", read,
          write};
}

}  // namespace octavo_train
