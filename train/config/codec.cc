// Implements the codecs of numbers, words and paths. Numbers are parsed by std::from_chars, which ignores the
// locale, and must use the complete text. 1e-3 is a number (some YAML readers read it as a string). "1e-3" in
// quotes, 0x10 and 1_000 are not numbers.
// SPDX-License-Identifier: MIT
#include "train/config/codec.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <system_error>

namespace octavo_train {
namespace {

template <class T>
std::optional<T> number_in(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::scalar || !node.plain) return std::nullopt;
  std::string_view text = node.text;
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return parse_number<T>(text);
}

// Returns the shortest text that reads back as the same double. A number with an exponent also has a decimal
// point, because YAML 1.1 readers, such as Python's, read 1e-08 as a string.
std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), end);  // it always fits
  const auto exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::optional<bool> flag_in(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::scalar || !node.plain) return std::nullopt;
  const std::string word = lower(node.text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::optional<std::string> text_in(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::scalar || node.text.empty()) return std::nullopt;
  if (node.text.find('\0') != std::string::npos) return std::nullopt;
  return node.text;
}

std::string text_of(const std::string& value) { return yaml_text(value); }

std::string range_text(const Range& range) {
  if (std::isinf(range.low)) return "a number";
  const std::string low = number_text(range.low);
  if (std::isinf(range.high)) return (range.above ? "a number above " : "a number ≥ ") + low;
  return (range.above ? "a number above " : "a number from ") + low + (range.below ? " to below " : " to ") +
         number_text(range.high);
}

// Returns a limit as text. Large limits are powers of two, which are easier to read as 2^N.
std::string limit_text(std::int64_t limit) {
  const auto bits = static_cast<std::uint64_t>(limit);
  const bool is_large_power = limit >= (1 << 20) && std::has_single_bit(bits);
  return is_large_power ? "2^" + std::to_string(std::countr_zero(bits)) : std::to_string(limit);
}

}  // namespace

Codec<bool> flag() {
  return {"true or false", flag_in, [](const bool& value) { return std::string(value ? "true" : "false"); }};
}

Codec<std::int64_t> integer(std::int64_t low, std::int64_t high) {
  auto read = [low, high](const YamlNode& node) {
    const auto value = number_in<std::int64_t>(node);
    return value && *value >= low && *value <= high ? value : std::nullopt;
  };
  const bool bounded = high != std::numeric_limits<std::int64_t>::max();
  return {bounded ? "an integer from " + std::to_string(low) + " to " + limit_text(high)
                  : "an integer ≥ " + std::to_string(low),
          read, [](const std::int64_t& value) { return std::to_string(value); }};
}

Codec<std::int64_t> count_or_all() {
  auto read = [](const YamlNode& node) {
    const auto value = number_in<std::int64_t>(node);
    return value && (*value >= 1 || *value == -1) ? value : std::nullopt;
  };
  return {"an integer ≥ 1, or -1 for all", read,
          [](const std::int64_t& value) { return std::to_string(value); }};
}

Codec<std::int64_t> batch_rows() {
  const Codec<std::int64_t> codec = integer(1, kNoLimit - 1);
  auto read = [read = codec.read](const YamlNode& node) -> std::optional<std::int64_t> {
    const bool is_auto = node.kind == YamlNode::Kind::scalar && node.plain && node.text == "auto";
    return is_auto ? kNoLimit : read(node);
  };
  auto write = [write = codec.write](const std::int64_t& value) {
    return value == kNoLimit ? "auto" : write(value);
  };
  return {codec.expected + ", or auto", read, write};
}

// Accepts decimal units, as this program writes them (8 GB is 8e9 bytes), and binary units (GiB). Writes a
// number of bytes without a unit.
Codec<std::int64_t> byte_size() {
  auto read = [](const YamlNode& node) -> std::optional<std::int64_t> {
    if (node.kind != YamlNode::Kind::scalar) return std::nullopt;
    constexpr std::array<std::pair<std::string_view, double>, 9> kUnits = {{{"B", 1},
                                                                            {"kB", 1e3},
                                                                            {"MB", 1e6},
                                                                            {"GB", 1e9},
                                                                            {"TB", 1e12},
                                                                            {"KiB", 0x1p10},
                                                                            {"MiB", 0x1p20},
                                                                            {"GiB", 0x1p30},
                                                                            {"TiB", 0x1p40}}};
    std::string_view text = node.text;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || !(value >= 0)) return std::nullopt;
    std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
    while (unit.starts_with(' ')) unit.remove_prefix(1);
    if (unit.empty() && node.plain) unit = "B";
    for (const auto& [name, bytes] : kUnits)
      if (name == unit && value * bytes < 0x1p62) return static_cast<std::int64_t>(value * bytes);
    return std::nullopt;
  };
  return {"bytes, with a unit (MB, GB, MiB, GiB) or without", read,
          [](const std::int64_t& value) { return std::to_string(value); }};
}

Codec<double> real(Range range) {
  auto read = [range](const YamlNode& node) -> std::optional<double> {
    const auto value = number_in<double>(node);
    if (!value || !std::isfinite(*value)) return std::nullopt;
    if (*value < range.low || (range.above && *value <= range.low)) return std::nullopt;
    if (*value > range.high || (range.below && *value >= range.high)) return std::nullopt;
    return *value == 0 ? 0.0 : value;  // -0 is 0
  };
  return {range_text(range), read, [](const double& value) { return number_text(value); }};
}

Codec<std::string> word(std::vector<std::string> words) {
  std::string expected = alternatives(words);
  auto read = [words = std::move(words)](const YamlNode& node) -> std::optional<std::string> {
    if (node.kind != YamlNode::Kind::scalar) return std::nullopt;
    for (const std::string& each : words)
      if (node.text == each) return each;
    return std::nullopt;
  };
  return {std::move(expected), std::move(read), [](const std::string& value) { return value; }};
}

Codec<std::string> text(std::string expected) { return {std::move(expected), text_in, text_of}; }

Codec<std::string> path() {
  Codec<std::string> codec = text("a path");
  codec.paths = [](std::string& value) { return std::vector<std::string*>{&value}; };
  return codec;
}

Codec<std::string> new_path() {
  Codec<std::string> codec = path();
  codec.makes_paths = true;
  return codec;
}

Codec<std::vector<std::string>> paths() {
  auto read = [](const YamlNode& node) -> std::optional<std::vector<std::string>> {
    std::vector<std::string> out;
    if (node.kind == YamlNode::Kind::scalar) {
      auto one = text_in(node);
      if (!one) return std::nullopt;
      return std::vector<std::string>{std::move(*one)};
    }
    if (node.kind != YamlNode::Kind::list || node.items.empty()) return std::nullopt;
    for (const YamlNode& item : node.items) {
      auto one = text_in(item);
      if (!one) return std::nullopt;
      out.push_back(std::move(*one));
    }
    return out;
  };
  auto write = [](const std::vector<std::string>& value) {
    if (value.size() == 1) return text_of(value[0]);
    return "[" + joined(value, ", ", text_of) + "]";
  };
  Codec<std::vector<std::string>> codec = {"a path or a list of paths", read, write};
  codec.paths = [](std::vector<std::string>& values) {
    std::vector<std::string*> out;
    for (std::string& value : values) out.push_back(&value);
    return out;
  };
  return codec;
}

Codec<std::vector<std::int64_t>> stage_sizes() {
  auto read = [](const YamlNode& node) -> std::optional<std::vector<std::int64_t>> {
    if (node.kind != YamlNode::Kind::list || node.items.empty()) return std::nullopt;
    std::vector<std::int64_t> out;
    for (const YamlNode& item : node.items) {
      const auto value = number_in<std::int64_t>(item);
      if (!value || (!out.empty() && out.back() == -1)) return std::nullopt;
      if (*value != -1 && *value <= (out.empty() ? 0 : out.back())) return std::nullopt;
      out.push_back(*value);
    }
    return out;
  };
  auto write = [](const std::vector<std::int64_t>& value) {
    return "[" + joined(value, ", ", [](std::int64_t one) { return std::to_string(one); }) + "]";
  };
  return {"a list of rising sizes such as [100000, 500000, -1], where -1 (all) can only be the last", read,
          write};
}

// The value that the command's --resume option gives.
constexpr std::string_view kChanged = "changed";

Codec<Resume> resume_choice() {
  auto read = [](const YamlNode& node) -> std::optional<Resume> {
    if (const auto latest = flag_in(node)) return Resume{*latest, {}};
    auto from = text_in(node);
    if (!from) return std::nullopt;
    if (node.plain && *from == kChanged) return Resume{true, {}, true};
    return Resume{false, std::move(*from)};
  };
  auto write = [](const Resume& value) {
    if (value.changed) return std::string(kChanged);
    if (value.path.empty()) return std::string(value.latest ? "true" : "false");
    return value.path == kChanged ? '"' + value.path + '"' : text_of(value.path);
  };
  Codec<Resume> codec = {"true (the newest, if any), changed, false, or a checkpoint's path", read, write};
  codec.paths = [](Resume& value) {
    return value.path.empty() ? std::vector<std::string*>() : std::vector<std::string*>{&value.path};
  };
  return codec;
}

}  // namespace octavo_train
