// Implements the codecs: numbers, words, paths, optimizer and device names, and the mappings of
// training.groups, no_decay and init_rename. Numbers are parsed by std::from_chars, which ignores the locale,
// and must use the complete text. 1e-3 is a number (some YAML readers read it as a string). "1e-3" in quotes,
// 0x10 and 1_000 are not numbers.
// SPDX-License-Identifier: MIT
#include "train/config/codec.h"

#include "train/base/edit_distance.h"
#include "train/config/lookup.h"

#include <octavo/formats.h>
#include <octavo/types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
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

std::string integer_text(std::int64_t value) { return std::to_string(value); }

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

// Returns the text in quotes, also where YAML does not need them.
std::string quoted(const std::string& text) {
  const std::string out = yaml_text(text);
  return out.front() == '"' ? out : '"' + out + '"';
}

std::string range_text(const Range& range) {
  if (std::isinf(range.low)) return "a number";
  const std::string low = number_text(range.low);
  if (std::isinf(range.high)) return (range.above ? "a number above " : "a number ≥ ") + low;
  return fmt::format("a number {} {} to {}{}", range.above ? "above" : "from", low,
                     range.below ? "below " : "", number_text(range.high));
}

// Returns a limit as text. Large limits are powers of two, which are easier to read as 2^N.
std::string limit_text(std::int64_t limit) {
  const auto bits = static_cast<std::uint64_t>(limit);
  const bool is_large_power = limit >= (1 << 20) && std::has_single_bit(bits);
  return is_large_power ? fmt::format("2^{}", std::countr_zero(bits)) : integer_text(limit);
}

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
  const auto algorithm = [](octavo::Algorithm each) { return name(each); };
  std::string out = fmt::format("one of {}, alone (fp32 states) or followed by one of",
                                joined(octavo::all_algorithms(), ", ", algorithm));
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
  return value.index ? fmt::format("cuda:{}", *value.index) : "cuda";
}

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
          auto patterns = paths().read(node);
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
  return near ? fmt::format("unknown key; did you mean {}?", like->name)
              : "unknown key; the keys of a group are " + names_of_keys();
}

// Returns the error of keys that contradict each other or have no effect; empty if there is none.
std::string contradiction(const GroupSettings& group) {
  if (group.params.empty()) return "the group has no params; name its parameters: params: \"encoder.*\"";
  const bool trains = group.weight_decay || group.learning_rate || group.state;
  if (!trains && !group.freeze)
    return "the group has no effect; give one of weight_decay, learning_rate, state and freeze";
  if (trains && group.freeze == true)
    return "freeze is true, so the parameters are not trained; remove freeze or the other keys";
  return {};
}

std::optional<Problem> read_group(const YamlNode& node, const std::string& part, GroupSettings& group) {
  if (node.kind != YamlNode::Kind::map)
    return Problem{node.place, part,
                   fmt::format("got {}, expected a mapping with {}", shown(node), names_of_keys())};
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const YamlNode& word = node.keys[i];
    const YamlNode& value = node.items[i];
    const auto* const key = std::ranges::find(group_keys(), word.text, &GroupKey::name);
    const std::string path = part + "." + shown(word.text);
    if (key == group_keys().end()) return Problem{word.place, path, unknown_key(word.text)};
    if (!key->read(value, group))
      return Problem{value.place, path, fmt::format("got {}, expected {}", shown(value), key->expected)};
  }
  std::string against = contradiction(group);
  if (against.empty()) return std::nullopt;
  return Problem{node.place, part, std::move(against)};
}

std::optional<Problem> read_groups(const YamlNode& node, std::vector<GroupSettings>& out) {
  if (node.kind == YamlNode::Kind::null) return std::nullopt;
  if (node.kind != YamlNode::Kind::list)
    return Problem{node.place, "", fmt::format("got {}, expected {}", shown(node), kGroupsExpected)};
  for (std::size_t i = 0; i < node.items.size(); ++i)
    if (auto problem = read_group(node.items[i], fmt::format("[{}]", i), out.emplace_back())) return problem;
  return std::nullopt;
}

std::string groups_text(const std::vector<GroupSettings>& groups) {
  const auto group_text = [](const GroupSettings& group) {
    std::string out;
    for (const GroupKey& key : group_keys())
      if (const std::string value = key.write(group); !value.empty())
        out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", key.name, value);
    return "{" + out + "}";
  };
  return "[" + joined(groups, ", ", group_text) + "]";
}

constexpr char kAny = '*';

std::ptrdiff_t stars(std::string_view text) { return std::ranges::count(text, kAny); }

constexpr const char* kRenamesExpected = R"(a mapping of patterns such as {"encoder.*": "model.encoder.*"})";

// Returns the error of one entry of init_rename; empty if the entry is valid.
std::string rename_error(const YamlNode& from, const YamlNode& to) {
  const bool is_scalar = to.kind == YamlNode::Kind::scalar;
  if (!is_scalar || to.text.empty())
    return fmt::format("got {}, expected a name", is_scalar ? "nothing" : shown(to));
  if (from.text.empty()) return "the pattern is empty; \"*\" matches every name";
  if (stars(from.text) == stars(to.text)) return {};
  return fmt::format(
      "got {} with {} of *, expected {}: each * stands for the text that the * at the same position of the "
      "pattern matches",
      shown(to.text), stars(to.text), stars(from.text));
}

std::optional<Problem> read_renames(const YamlNode& node, std::vector<Rename>& out) {
  if (node.kind == YamlNode::Kind::null) return std::nullopt;
  if (node.kind != YamlNode::Kind::map)
    return Problem{node.place, "", fmt::format("got {}, expected {}", shown(node), kRenamesExpected)};
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const YamlNode& to = node.items[i];
    std::string error = rename_error(node.keys[i], to);
    if (!error.empty()) return Problem{to.place, "." + shown(node.keys[i].text), std::move(error)};
    out.push_back({node.keys[i].text, to.text});
  }
  return std::nullopt;
}

std::string renames_text(const std::vector<Rename>& rules) {
  const auto text = [](const Rename& rule) { return quoted(rule.from) + ": " + quoted(rule.to); };
  return "{" + joined(rules, ", ", text) + "}";
}

// Returns a codec of lists and mappings. `read` returns the first error.
template <class T>
Codec<T> codec_with_parts(const char* expected, std::optional<Problem> (*read)(const YamlNode&, T&),
                          std::string (*write)(const T&)) {
  auto value = [read](const YamlNode& node) {
    std::optional<T> out = T();
    if (read(node, *out)) out.reset();
    return out;
  };
  auto problem = [read](const YamlNode& node) {
    T ignored;
    return read(node, ignored).value_or(Problem{});
  };
  return {expected, value, write, {}, problem};
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

Codec<bool> flag() {
  return {"true or false", flag_in, [](const bool& value) { return std::string(value ? "true" : "false"); }};
}

Codec<std::int64_t> integer(std::int64_t low, std::int64_t high) {
  auto read = [low, high](const YamlNode& node) {
    const auto value = number_in<std::int64_t>(node);
    return value && *value >= low && *value <= high ? value : std::nullopt;
  };
  const bool bounded = high != std::numeric_limits<std::int64_t>::max();
  return {bounded ? fmt::format("an integer from {} to {}", low, limit_text(high))
                  : fmt::format("an integer ≥ {}", low),
          read, integer_text};
}

Codec<std::int64_t> count_or_all() {
  auto read = [](const YamlNode& node) {
    const auto value = number_in<std::int64_t>(node);
    return value && (*value >= 1 || *value == -1) ? value : std::nullopt;
  };
  return {"an integer ≥ 1, or -1 for all", read, integer_text};
}

Codec<std::int64_t> batch_rows() {
  const Codec<std::int64_t> codec = integer(1, kNoLimit - 1);
  auto read = [read = codec.read](const YamlNode& node) -> std::optional<std::int64_t> {
    return is_word(node, "auto") ? kNoLimit : read(node);
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
  return {"bytes, with a unit (MB, GB, MiB, GiB) or without", read, integer_text};
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
    const bool is_list = node.kind == YamlNode::Kind::list;
    std::vector<std::string> out;
    for (const YamlNode& item : is_list ? node.items : std::vector<YamlNode>{node}) {
      auto one = text_in(item);
      if (!one) return std::nullopt;
      out.push_back(std::move(*one));
    }
    return out.empty() ? std::nullopt : std::optional(std::move(out));
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
    return "[" + joined(value, ", ", integer_text) + "]";
  };
  return {"a list of rising sizes such as [100000, 500000, -1], where -1 (all) can only be the last", read,
          write};
}

Codec<Resume> resume_choice() {
  // The value that the command's --resume option gives. Its former name was `changed`.
  static constexpr std::array<std::string_view, 2> kAllowChanges = {"allow_changes", "changed"};
  const auto is_name = [](const std::string& text) {
    return std::ranges::find(kAllowChanges, text) != kAllowChanges.end();
  };
  auto read = [is_name](const YamlNode& node) -> std::optional<Resume> {
    if (const auto latest = flag_in(node)) return Resume{*latest, {}};
    auto from = text_in(node);
    if (!from) return std::nullopt;
    if (node.plain && is_name(*from)) return Resume{true, {}, true};
    return Resume{false, std::move(*from)};
  };
  auto write = [is_name](const Resume& value) {
    if (value.allow_changes) return std::string(kAllowChanges[0]);
    if (value.path.empty()) return std::string(value.latest ? "true" : "false");
    return is_name(value.path) ? quoted(value.path) : text_of(value.path);
  };
  Codec<Resume> codec = {"true, allow_changes, false, or a checkpoint's path", read, write};
  codec.paths = [](Resume& value) {
    return value.path.empty() ? std::vector<std::string*>() : std::vector<std::string*>{&value.path};
  };
  return codec;
}

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

Codec<std::vector<GroupSettings>> parameter_groups() {
  return codec_with_parts(kGroupsExpected, read_groups, groups_text);
}

Codec<NoDecay> no_decay_choice() {
  auto read = [](const YamlNode& node) -> std::optional<NoDecay> {
    if (is_word(node, "auto")) return NoDecay{NoDecay::Kind::automatic, {}};
    if (node.kind == YamlNode::Kind::null || is_word(node, "none")) return NoDecay{};
    auto patterns = paths().read(node);
    if (!patterns) return std::nullopt;
    return NoDecay{NoDecay::Kind::patterns, std::move(*patterns)};
  };
  auto write = [](const NoDecay& value) -> std::string {
    if (value.kind == NoDecay::Kind::automatic) return "auto";
    if (value.kind == NoDecay::Kind::none) return "none";
    const std::string text = paths().write(value.patterns);
    return text == "auto" || text == "none" ? quoted(text) : text;
  };
  return {fmt::format("auto, none, {}", kPatternsExpected), read, write};
}

Codec<std::vector<Rename>> renames() {
  return codec_with_parts(kRenamesExpected, read_renames, renames_text);
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
