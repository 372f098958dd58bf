// SPDX-License-Identifier: MIT
#include "train/base/terminal_text.h"

#include "train/base/utf8.h"

#include <fmt/format.h>

#include <utility>

namespace octavo_train {
namespace {

std::string escaped(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

// Returns true if the character is valid and not a control character other than newline and tab.
bool shows(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  const bool control = first < 0x20 || first == 0x7F || (first == 0xC2 && character[1] < '\xA0');
  return utf8_length(character) == character.size() && (!control || first == '\n' || first == '\t');
}

}  // namespace

std::string TerminalText::put(char c) {
  std::string out;
  if (!pending_.empty() && !utf8_continues(c)) out = end();
  pending_ += c;
  const std::size_t length = utf8_length_from(pending_[0]);
  if (length == 0) return out + end();
  if (pending_.size() < length) return out;
  const std::string whole = std::exchange(pending_, {});
  return out + (shows(whole) ? whole : escaped(whole));
}

std::string TerminalText::end() { return escaped(std::exchange(pending_, {})); }

std::string terminal_text(std::string_view bytes) {
  TerminalText text;
  std::string out;
  for (const char c : bytes) out += text.put(c);
  return out + text.end();
}

}  // namespace octavo_train
