// SPDX-License-Identifier: MIT
#include "train/base/terminal_text.h"

#include <array>
#include <cstdint>
#include <utility>

namespace octavo_train {
namespace {

std::string escaped(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

// Returns the number of bytes of the character that begins with this byte; 0 if no character does.
std::size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return 2;
  if (first >= 0xE0 && first < 0xF0) return 3;
  return first >= 0xF0 && first < 0xF5 ? 4 : 0;
}

// Returns true if the character is valid and not a control character other than newline and tab. REQUIRES:
// the number of bytes that the first byte indicates, and all others are 10xxxxxx.
bool shows(std::string_view bytes) {
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  constexpr std::array<std::uint32_t, 5> kMask = {0, 0x7F, 0x1F, 0x0F, 0x07};
  std::uint32_t code = static_cast<unsigned char>(bytes[0]) & kMask[bytes.size()];
  for (const char c : bytes.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3F);
  if (code < kLeast[bytes.size()] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
  const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  return !control || code == '\n' || code == '\t';
}

}  // namespace

std::string TerminalText::put(char c) {
  const auto byte = static_cast<unsigned char>(c);
  std::string out;
  if (!pending_.empty() && (byte & 0xC0) != 0x80) out = end();
  pending_ += c;
  const std::size_t length = length_of(static_cast<unsigned char>(pending_[0]));
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
