// Formats a number with a decimal point in every locale.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <charconv>
#include <string>

namespace octavo_train {

// `digits` counts the digits after the point in the fixed format, and all digits in the general format.
inline std::string decimal_text(double value, std::chars_format format, int digits) {
  std::array<char, 400> text{};  // the largest double has 309 digits
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  return {text.data(), end.ptr};
}

}  // namespace octavo_train
