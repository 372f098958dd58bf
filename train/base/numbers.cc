// SPDX-License-Identifier: MIT
#include "train/base/numbers.h"

#include <fmt/format.h>

#include <cmath>

namespace octavo_train {
namespace {

bool known(const std::optional<double>& value) { return value && std::isfinite(*value); }

std::string rounded(double value, int digits) {
  return decimal_text(value, std::chars_format::fixed, digits);
}

// Returns about three digits and a unit: 51.4 MB.
template <std::size_t N>
std::string scaled(double value, const std::array<const char*, N>& units, const char* between) {
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < N) {
    value /= 1000;
    ++unit;
  }
  const bool whole = unit == 0 || std::abs(value) >= 99.95;
  return rounded(value, whole ? 0 : std::abs(value) >= 9.995 ? 1 : 2) + between + units[unit];
}

}  // namespace

std::string fixed(std::optional<double> value, int digits) {
  return known(value) ? rounded(*value, digits) : kUnknown;
}

std::string significant(std::optional<double> value, int digits) {
  return known(value) ? decimal_text(*value, std::chars_format::general, digits) : kUnknown;
}

std::string grouped(std::optional<double> value) {
  if (!known(value)) return kUnknown;
  std::string out = rounded(*value, 0);
  const std::size_t first = out.starts_with('-') ? 1 : 0;
  for (std::size_t at = out.size(); at > first + 3;) out.insert(at -= 3, 1, ',');
  return out;
}

std::string short_count(std::optional<double> value) {
  static constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  return known(value) ? scaled(*value, kUnits, "") : kUnknown;
}

std::string bytes_text(std::optional<double> value) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  return known(value) ? scaled(*value, kUnits, " ") : kUnknown;
}

std::string brief_time(std::optional<double> seconds) {
  if (!known(seconds)) return kUnknown;
  if (*seconds < 0.9995) return significant(*seconds * 1e3, 3) + " ms";
  return (*seconds < 99.95 ? significant(seconds, 3) : grouped(seconds)) + " s";
}

std::string duration_text(std::optional<double> seconds) {
  if (!known(seconds) || *seconds < 0 || *seconds > 1e12) return kUnknown;
  if (*seconds < 10) return rounded(*seconds, 1) + " s";
  const auto all = static_cast<std::int64_t>(std::llround(*seconds));
  if (all < 60) return fmt::format("{} s", all);
  if (all < 3600) return fmt::format("{} min {:02} s", all / 60, all % 60);
  const std::int64_t minutes = all / 60;
  if (minutes < 48 * 60) return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
  return fmt::format("{} d {:02} h", minutes / 1440, minutes / 60 % 24);
}

std::string percent_text(std::optional<double> fraction) {
  return known(fraction) ? rounded(*fraction * 100, std::abs(*fraction) < 0.1 ? 2 : 1) + "%" : kUnknown;
}

std::string counted(std::int64_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace octavo_train
