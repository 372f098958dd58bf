// Encodes and decodes Base64 (RFC 4648).
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octavo_train {

inline constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline std::string base64_encoded(std::string_view bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view part = bytes.substr(i, 3);
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < part.size() ? static_cast<unsigned char>(part[k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) out += k <= part.size() ? kBase64[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// Returns nothing if the text is not valid Base64.
inline std::optional<std::string> base64_decoded(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t word = 0;
    std::size_t filled = 4;
    for (std::size_t k = 0; k < 4; ++k) {
      const char c = text[i + k];
      const bool fill = c == '=' && k >= 2 && i + 4 == text.size() && (k == 3 || text[i + 3] == '=');
      const std::size_t value = fill ? 0 : kBase64.find(c);
      if (value == std::string_view::npos) return std::nullopt;
      if (fill) filled = std::min(filled, k);
      word = word << 6 | static_cast<std::uint32_t>(value);
    }
    for (std::size_t k = 0; k + 1 < filled; ++k) out += static_cast<char>(word >> (16 - 8 * k) & 0xFF);
  }
  return out;
}

}  // namespace octavo_train
