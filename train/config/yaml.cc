// Parses the text of a config to YamlNode. It uses the library's events, not its nodes: every event has a
// place, the cost is proportional to the text's size, and an alias can be rejected before it is expanded.
// SPDX-License-Identifier: MIT
#include "train/config/yaml.h"

#include "train/base/utf8.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kMaxDepth = 8;  // a config needs three levels
constexpr std::size_t kMaxShown = 60;

struct Refusal {
  TextPlace place;
  std::string reason;
};

TextPlace place_of(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

// Builds the tree. Keeps the first refusal and ignores later ones. A syntax error later in the text may be
// the cause, so the syntax error is reported instead.
class TreeBuilder final : public YAML::EventHandler {
 public:
  YamlNode root;
  std::optional<Refusal> refusal;

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) {
      refuse(place_of(mark),
             "the config ends before this line, which begins a second document (`---`) or has an extra "
             "closing bracket");
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (accepts(mark, "", anchor)) add({.place = place_of(mark)});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    refuse(place_of(mark), "aliases (*name) are not part of a config; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!accepts(mark, tag, anchor)) return;
    add({.kind = YamlNode::Kind::scalar, .text = value, .plain = tag != kQuoted, .place = place_of(mark)});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    if (accepts(mark, tag, anchor)) open({.kind = YamlNode::Kind::list, .place = place_of(mark)});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    if (accepts(mark, tag, anchor)) open({.kind = YamlNode::Kind::map, .place = place_of(mark)});
  }
  void OnMapEnd() override { close(); }

 private:
  // The library's two tags for a node that has no tag.
  static constexpr std::string_view kNoTag = "?";
  static constexpr std::string_view kQuoted = "!";

  void refuse(TextPlace place, std::string reason) {
    if (!refusal) refusal = Refusal{place, std::move(reason)};
  }
  bool accepts(const YAML::Mark& mark, std::string_view tag, YAML::anchor_t anchor) {
    if (anchor != 0) refuse(place_of(mark), "anchors (&name) are not part of a config; remove it");
    if (!tag.empty() && tag != kNoTag && tag != kQuoted)
      refuse(place_of(mark), "tags (!name) are not part of a config; remove it");
    return !refusal;
  }
  void open(YamlNode node) {
    if (open_.size() >= kMaxDepth)
      refuse(node.place, "nested too deeply; a config has sections and keys");
    else if (expects_key())
      refuse(node.place, "a key must be a word, not a list or a mapping");
    else
      open_.push_back(std::move(node));
  }
  void close() {
    if (refusal) return;
    YamlNode done = std::move(open_.back());
    open_.pop_back();
    add(std::move(done));
  }
  [[nodiscard]] bool expects_key() const {
    return !open_.empty() && open_.back().kind == YamlNode::Kind::map &&
           open_.back().keys.size() == open_.back().items.size();
  }
  void add(YamlNode node) {
    if (open_.empty())
      root = std::move(node);
    else if (!expects_key())
      open_.back().items.push_back(std::move(node));
    else if (node.kind == YamlNode::Kind::scalar)
      open_.back().keys.push_back(std::move(node));
    else
      refuse(node.place, "a key is missing before `:`");
  }

  std::vector<YamlNode> open_;  // the open lists and maps, outermost first
  int documents_ = 0;
};

// Returns the length in bytes of the character at the start of `text`; 0 if the text starts with a control
// character or with bytes that are not valid UTF-8.
std::size_t character_length(std::string_view text) {
  const char c = text[0];
  const bool control = c >= 0 && c < 0x20 && c != '\t' && c != '\n' && c != '\r';
  return control ? 0 : utf8_length(text);
}

Status check_text(std::string_view text, const Source& source) {
  if (text.size() > kMaxConfigBytes) {
    return invalid_error("{}: {} bytes; a config has at most {} (is this the right file?)", source.name,
                         text.size(), kMaxConfigBytes);
  }
  TextPlace place;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0)
      return invalid_error("{}: byte 0x{:02x} is not text; save the file as UTF-8", at(source, place),
                           static_cast<unsigned char>(text[0]));
    if (text[0] == '\n')
      place = {place.line + 1, 1};
    else
      place.column += static_cast<int>(length);
    text.remove_prefix(length);
  }
  return {};
}

constexpr std::string_view kBlank = " \t\r";
constexpr std::string_view kNone = "None", kNull = "null";

// Removes the next line, with its line break, from `text` and returns it.
std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
  text.remove_prefix(line.size());
  return line;
}

// Returns the position of the `=` of an assignment; npos if the line is not an assignment.
std::size_t equals_in(std::string_view line) {
  constexpr std::string_view kFirst = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789.";
  if (line.empty() || kFirst.find(line[0]) == std::string_view::npos) return std::string_view::npos;
  const std::size_t end = line.find_first_not_of(kName);
  if (end == std::string_view::npos) return end;
  const std::size_t at = line.find_first_not_of(" \t", end);
  const bool is_one = at != std::string_view::npos && line[at] == '=' && line.substr(at, 2) != "==";
  return is_one ? at : std::string_view::npos;
}

// Returns true if a line without indentation begins a Python statement other than an assignment. No key of a
// config is one of these words.
bool is_code(std::string_view line) {
  constexpr std::array<std::string_view, 12> kWords = {"import", "from", "def", "class", "if",     "for",
                                                       "while",  "with", "try", "async", "assert", "del"};
  constexpr std::string_view kDocstring = "\"\"\"";
  if (line.starts_with('@') || line.starts_with(kDocstring) || line.starts_with("'''")) return true;
  const std::size_t end = std::min(line.find_first_of(" \t(:="), line.size());
  if (end == 0 || end == line.size()) return false;
  const std::string_view word = line.substr(0, end);
  if (line[end] == '(') return word.find_first_of("#'\"[{") == std::string_view::npos;  // a call
  if (std::ranges::find(kWords, word) == kWords.end()) return false;
  if (word == "try") return line[end] == ':';
  const std::size_t next = line.find_first_not_of(" \t", end);
  return next != std::string_view::npos && line[next] != ':' && line[next] != '=';
}

// Returns the value after the `=`, with None replaced by null.
std::string value_text(std::string_view rest) {
  std::string out(rest);
  const std::size_t begin = rest.find_first_not_of(kBlank);
  if (begin == std::string_view::npos || rest.substr(begin, kNone.size()) != kNone) return out;
  const std::string_view after = rest.substr(begin + kNone.size());
  const bool is_all = after.empty() || kBlank.find(after[0]) != std::string_view::npos || after[0] == '\n';
  if (is_all) out.replace(begin, kNone.size(), kNull);
  return out;
}

// Returns the error for a Python script. `is_value`: the line is a setting whose value Python would have to
// compute.
Status code_error(const CodeLine& code, const Source& source, bool is_value) {
  const bool plain = source.name.find_first_of(" '\"$`\\") == std::string::npos;
  // The command must not write to the file that it reads.
  const char* const copy = source.name.ends_with("settings.py") ? "config.py" : "settings.py";
  return invalid_error(
      "{}: {}: Python code is not executed; a config is lines of NAME = value, or YAML. {}: grep -E "
      "\"^[A-Z0-9_]+ *= *(True|False|None|[-.0-9'\\\"])\" {} > {}; remove the names that docs/config.md does "
      "not have, and run octavo train {}",
      at(source, {code.line, 1}), shown(code.text),
      is_value ? "Write the value itself in this line; if other lines are code, copy the settings first"
               : "Copy the script's settings",
      plain ? source.name : "SCRIPT.py", copy, copy);
}

}  // namespace

std::string at(const Source& source, TextPlace place) {
  return source.is_file ? fmt::format("{}:{}:{}", source.name, place.line, place.column) : source.name;
}

Result<YamlNode> read_yaml(std::string_view text, const Source& source, std::optional<TextPlace>* not_yaml) {
  RETURN_IF_ERROR(check_text(text, source));
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder;
    // The library does not move past an unmatched closing bracket. If a second document were not refused, it
    // would report documents without end.
    while (!builder.refusal && parser.HandleNextDocument(builder)) {
    }
    if (builder.refusal)
      return invalid_error("{}: {}", at(source, builder.refusal->place), builder.refusal->reason);
    return std::move(builder.root);
  } catch (const YAML::Exception& error) {
    const TextPlace place = error.mark.is_null() ? TextPlace{} : place_of(error.mark);
    if (not_yaml != nullptr) *not_yaml = place;
    return invalid_error("{}: not YAML: {}", at(source, place), error.msg);
  }
}

bool has_assignments(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    const std::size_t begin = line.find_first_not_of(" \t\r\n");
    if (begin != std::string_view::npos && line[begin] != '#')
      return equals_in(line) != std::string_view::npos;
  }
  return false;
}

std::optional<CodeLine> find_code(std::string_view text) {
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (is_code(line)) return CodeLine{number, line.substr(0, line.find_last_not_of(" \t\r\n") + 1)};
  }
  return std::nullopt;
}

CodeLine line_of(std::string_view text, int number) {
  for (int before = 1; before < number && !text.empty(); ++before) take_line(text);
  if (text.empty()) return {number, {}};
  std::string_view line = take_line(text);
  line.remove_prefix(std::min(line.find_first_not_of(" \t\r\n"), line.size()));
  return {number, line.substr(0, line.find_last_not_of(" \t\r\n") + 1)};
}

std::string assignments_as_yaml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    const std::size_t equals = equals_in(line);
    if (equals == std::string_view::npos) {
      out += line;
      continue;
    }
    const std::string_view rest = line.substr(equals + 1);
    const bool has_room = rest.empty() || rest[0] == '\n' || kBlank.find(rest[0]) != std::string_view::npos;
    out.append(line.substr(0, equals)).append(has_room ? ":" : ": ").append(value_text(rest));
  }
  return out;
}

Result<YamlNode> read_config_text(std::string_view text, const Source& source) {
  if (const auto code = find_code(text)) return code_error(*code, source, false);
  if (!has_assignments(text)) return read_yaml(text, source);
  std::optional<TextPlace> not_yaml;
  auto root = read_yaml(assignments_as_yaml(text), source, &not_yaml);
  if (not_yaml) {  // a value that is a Python expression
    const CodeLine line = line_of(text, not_yaml->line);
    if (!line.text.empty()) return code_error(line, source, true);
  }
  return root;
}

std::string shown(std::string_view text) {
  std::size_t length = std::min(text.size(), kMaxShown);
  const bool is_whole = length == text.size();
  while (!is_whole && length > 0 && utf8_continues(text[length])) --length;
  std::string out(text.substr(0, length));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return is_whole ? out : out + "…";
}

std::string shown(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "null";
    case YamlNode::Kind::scalar:
      return node.plain ? shown(node.text) : "the text \"" + shown(node.text) + "\"";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      break;
  }
  return "a mapping";
}

std::string yaml_text(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+:";
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/";
  constexpr std::array<std::string_view, 7> kWords = {"null", "true", "false", "yes", "no", "on", "off"};
  bool plain = !text.empty() && kLetters.find(text[0]) != std::string_view::npos && text.back() != ':' &&
               text.find_first_not_of(kPlain) == std::string_view::npos;
  for (const std::string_view word : kWords)
    plain = plain && (text.size() != word.size() || (text[0] | 0x20) != word[0]);
  if (plain) return std::string(text);

  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (byte < 0x20 || byte == 0x7F)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + "\"";
}

}  // namespace octavo_train
