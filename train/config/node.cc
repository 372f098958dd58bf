// Parses YAML text to YamlNode. It uses the library's events, not its nodes: every event has a place, the
// cost is proportional to the text's size, and an alias can be rejected before it is expanded.
// SPDX-License-Identifier: MIT
#include "train/config/node.h"

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
             "the config has ended before this: a second document (`---`), or a bracket too many");
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

}  // namespace

std::string at(const Source& source, TextPlace place) {
  if (!source.is_file) return source.name;
  return source.name + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
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
      return Status::invalid(at(source, builder.refusal->place) + ": " + builder.refusal->reason);
    return std::move(builder.root);
  } catch (const YAML::Exception& error) {
    const TextPlace place = error.mark.is_null() ? TextPlace{} : place_of(error.mark);
    if (not_yaml != nullptr) *not_yaml = place;
    return Status::invalid(at(source, place) + ": not YAML: " + error.msg);
  }
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
