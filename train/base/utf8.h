// Decodes and encodes UTF-8.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo_train {

// Returns the number of bytes of the character that begins with this byte; 0 if no character does.
constexpr std::size_t utf8_length_from(char first_byte) {
  const auto first = static_cast<unsigned char>(first_byte);
  if (first < 0x80) return 1;
  return first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

// Returns true for the second and later bytes of a character.
constexpr bool utf8_continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Returns the number of bytes of the character at the start of `text`; 0 if there is no valid character.
// Overlong forms, surrogates and values above U+10FFFF are invalid.
inline std::size_t utf8_length(std::string_view text) {
  const std::size_t length = text.empty() ? 0 : utf8_length_from(text[0]);
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if (!utf8_continues(text[i])) return 0;
  if (length < 3) return length;
  const auto first = static_cast<unsigned char>(text[0]), second = static_cast<unsigned char>(text[1]);
  const bool bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                   (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

// Returns true if the text consists of valid characters.
inline bool is_utf8(std::string_view text) {
  std::size_t length = 1;
  for (; !text.empty() && length > 0; text.remove_prefix(length)) length = utf8_length(text);
  return length > 0;
}

// Returns the number of characters. REQUIRES: the text is valid UTF-8.
inline std::size_t utf8_count(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !utf8_continues(c); }));
}

// Appends a code point. REQUIRES: it is not a surrogate and at most U+10FFFF.
inline void append_utf8(std::uint32_t point, std::string& out) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) return put(point);
  if (point < 0x800) {
    put(0xC0 | (point >> 6));
  } else if (point < 0x10000) {
    put(0xE0 | (point >> 12));
    put(0x80 | ((point >> 6) & 0x3F));
  } else {
    put(0xF0 | (point >> 18));
    put(0x80 | ((point >> 12) & 0x3F));
    put(0x80 | ((point >> 6) & 0x3F));
  }
  put(0x80 | (point & 0x3F));
}

}  // namespace octavo_train
