// Formats numbers for display. A value that is missing or not finite becomes a dash.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

namespace octavo_train {

// Formats a number with a decimal point in every locale. `digits` counts the digits after the point in the
// fixed format, and all digits in the general format.
inline std::string decimal_text(double value, std::chars_format format, int digits) {
  std::array<char, 400> text{};  // the largest double has 309 digits
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  return {text.data(), end.ptr};
}

inline constexpr const char* kUnknown = "–";

std::string fixed(std::optional<double> value, int digits);        // 2.2310
std::string significant(std::optional<double> value, int digits);  // 0.001, 1.2e-05
std::string grouped(std::optional<double> value);                  // 25,300,992
std::string short_count(std::optional<double> value);              // 25.3M
std::string bytes_text(std::optional<double> value);               // 51.4 MB (decimal units)
std::string duration_text(std::optional<double> seconds);          // 2 h 05 min
std::string brief_time(std::optional<double> seconds);             // 380 ms, 1.25 s; same format as page.js
std::string percent_text(std::optional<double> fraction);          // 25.4%
std::string counted(std::int64_t count, const std::string& what);  // 1 step, 3 steps

}  // namespace octavo_train
