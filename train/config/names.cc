// Parses and writes names that have their own grammar: optimizers (algorithm and state format in one word)
// and devices.
// SPDX-License-Identifier: MIT
#include "train/config/codec.h"

#include <octavo/formats.h>
#include <octavo/types.h>

#include <algorithm>
#include <array>
#include <utility>

namespace octavo_train {
namespace {

constexpr int kMaxDeviceIndex = 1023;

// Separators in names. They are ignored: fp8-e5m2, fp8_e5m2 and fp8e5m2 are the same name.
constexpr std::string_view kSeparators = "_-/";

std::string squashed(std::string_view text) {
  std::string out = lower(text);
  std::erase_if(out, [](char c) { return kSeparators.find(c) != std::string_view::npos; });
  return out;
}

// Words in other tools' optimizer names that name the implementation. They are ignored: X_torch_fused is X,
// X_bnb_8bit is X_8bit.
constexpr std::array<std::string_view, 5> kMakers = {"torch", "fused", "bnb", "hf", "apex"};

// Prefix of bitsandbytes' paged optimizers; is_paged_name() tests for it.
constexpr std::string_view kPaged = "paged";

std::string without(std::string text, std::string_view part) {
  if (const auto at = text.find(part); at != std::string::npos) text.erase(at, part.size());
  return text;
}

std::optional<octavo::StateFormat> state_in(std::string_view squashed_name) {
  if (squashed_name.empty() || squashed_name == "32bit") return octavo::StateFormat::fp32;
  const auto is = [&](std::string_view name) { return squashed(name) == squashed_name; };
  for (const octavo::FormatInfo& info : octavo::formats())
    if (is(info.name) || std::ranges::any_of(info.aliases, is)) return info.number;
  return std::nullopt;
}

// Parses an algorithm and its format, in either order.
std::optional<OptimizerName> algorithm_and_state(std::string_view text) {
  for (const octavo::Algorithm algorithm : octavo::all_algorithms()) {
    const std::string word = squashed(name(algorithm));
    // An algorithm's name may be the beginning of another algorithm's name, so the rest must be a format.
    if (!text.starts_with(word) && !text.ends_with(word)) continue;
    const std::string_view left =
        text.starts_with(word) ? text.substr(word.size()) : text.substr(0, text.size() - word.size());
    if (const auto state = state_in(left)) return OptimizerName{algorithm, *state};
  }
  return std::nullopt;
}

std::optional<OptimizerName> optimizer_named(std::string text) {
  if (const auto found = algorithm_and_state(text)) return found;  // a maker's word may be part of a name
  for (const std::string_view maker : kMakers) text = without(std::move(text), maker);
  return algorithm_and_state(text);
}

std::optional<OptimizerName> optimizer_in(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::scalar) return std::nullopt;
  const std::string text = squashed(node.text);
  return optimizer_named(is_paged_name(node) ? text.substr(kPaged.size()) : text);
}

// Returns the part of a name after the algorithm, such as "_4bit_rank1"; empty for fp32.
std::string state_suffix(octavo::StateFormat state) {
  if (state == octavo::StateFormat::fp32) return {};
  std::string out = "_" + std::string(name(state));
  for (char& c : out)
    if (kSeparators.find(c) != std::string_view::npos) c = '_';
  return out;
}

std::string optimizer_text(const OptimizerName& value) {
  return std::string(name(value.algorithm)) + state_suffix(value.state);
}

std::string expected_optimizer() {
  std::string out = "one of ";
  for (const octavo::Algorithm algorithm : octavo::all_algorithms()) out.append(name(algorithm)).append(", ");
  out += "alone (fp32 states) or followed by one of";
  for (const octavo::StateFormat format : octavo::all_state_formats())
    if (format != octavo::StateFormat::fp32) out += " " + state_suffix(format);
  return out;
}

std::optional<DeviceName> device_in(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::scalar) return std::nullopt;
  std::string_view text = node.text;
  if (text == "auto") return DeviceName{DeviceName::Kind::automatic, {}};
  if (text == "cpu") return DeviceName{DeviceName::Kind::cpu, {}};
  if (text == "cuda") return DeviceName{DeviceName::Kind::cuda, {}};
  if (!text.starts_with("cuda:")) return std::nullopt;
  const auto index = parse_number<int>(text.substr(5));
  if (!index || *index < 0 || *index > kMaxDeviceIndex) return std::nullopt;
  return DeviceName{DeviceName::Kind::cuda, index};
}

std::string device_advice(const YamlNode& node) {
  if (squashed(node.text) != "mps") return {};
  return "the trainer has no code for Apple's GPUs, and runs on Linux only; use device: cpu";
}

std::string device_text(const DeviceName& value) {
  switch (value.kind) {
    case DeviceName::Kind::automatic:
      return "auto";
    case DeviceName::Kind::cpu:
      return "cpu";
    case DeviceName::Kind::cuda:
      break;
  }
  return value.index ? "cuda:" + std::to_string(*value.index) : "cuda";
}

}  // namespace

bool is_paged_name(const YamlNode& node) {
  return node.kind == YamlNode::Kind::scalar && squashed(node.text).starts_with(kPaged);
}

Codec<OptimizerName> optimizer_name() { return {expected_optimizer(), optimizer_in, optimizer_text}; }

Codec<octavo::StateFormat> state_name() {
  const std::string expected = "one of " + joined(octavo::all_state_formats(), ", ",
                                                  [](octavo::StateFormat format) { return name(format); });
  auto read = [](const YamlNode& node) -> std::optional<octavo::StateFormat> {
    const std::string word = squashed(node.text);
    if (node.kind != YamlNode::Kind::scalar || word.empty()) return std::nullopt;
    return state_in(word);
  };
  return {expected, read, [](const octavo::StateFormat& value) { return yaml_text(name(value)); }};
}

Codec<DeviceName> device_name() {
  return {"auto, cpu, cuda or cuda:0 (or another number)", device_in, device_text, device_advice};
}

}  // namespace octavo_train
