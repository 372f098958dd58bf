// Small functions of texts: lists, numbers that must be the complete text, lower case.
// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace octavo_train {

// Returns the texts of the items with `between` between them. `text` is a function of an item, or a member.
template <class Items, class Text = std::identity>
std::string joined(const Items& items, std::string_view between = ", ", const Text& text = {}) {
  std::string out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += between;
    first = false;
    out += std::invoke(text, item);
  }
  return out;
}

// Returns "a, b or c".
template <class Items, class Text = std::identity>
std::string alternatives(const Items& items, const Text& text = {}) {
  std::string out;
  std::size_t left = items.size();
  for (const auto& item : items) {
    out += std::invoke(text, item);
    if (--left > 0) out += left == 1 ? " or " : ", ";
  }
  return out;
}

// Returns the number that the complete text is, independent of the locale; nullopt if it is not one. `how` is
// the base of an integer or the format of a real number.
template <class Number, class... How>
std::optional<Number> parse_number(std::string_view text, How... how) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, how...);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Returns the text with ASCII letters in lower case, in every locale.
inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

}  // namespace octavo_train
