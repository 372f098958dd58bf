// SPDX-License-Identifier: MIT
#include "cli/parse.h"

#include "cli/cli.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

namespace octavo::cli {

std::vector<std::string_view> comma_separated(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

std::int64_t parse_numel(std::string_view text, std::string_view flag) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 50;  // byte counts stay far from overflow
  const auto bad = [&] {
    return Failure(kExitUsage,
                   std::string(flag) + ": got '" + std::string(text) +
                       "', expected a whole number from 1 to 2^50, such as 67108864, 2^26, 64M or 64Mi");
  };
  const char* const end = text.data() + text.size();
  std::int64_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value < 1 || value > kLimit) throw bad();
  std::string_view rest(at, static_cast<std::size_t>(end - at));

  std::int64_t factor = 1, times = 0;
  if (rest.starts_with('^')) {
    const auto [stop, failed] = std::from_chars(at + 1, end, times);
    if (failed != std::errc() || stop != end || times < 0 || times > 62) throw bad();
    factor = std::exchange(value, 1);
  } else if (!rest.empty()) {
    factor = rest.ends_with('i') ? 1024 : 1000;
    if (factor == 1024) rest.remove_suffix(1);
    const std::size_t unit =
        std::string_view("KMG").find(rest.size() == 1 ? (rest == "k" ? 'K' : rest[0]) : '?');
    if (unit == std::string_view::npos) throw bad();
    times = static_cast<std::int64_t>(unit) + 1;
  }
  for (; times > 0; --times) {
    if (value > kLimit / factor) throw bad();
    value *= factor;
  }
  return value;
}

}  // namespace octavo::cli
