// Tables and numbers for people; see table.h.
// SPDX-License-Identifier: MIT
#include "table.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <utility>

namespace octavo::cli {
namespace {

// Of UTF-8: its characters, not its bytes.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width, Table::Align align) {
  const std::string blanks(width - std::min(width, width_of(text)), ' ');
  return align == Table::Align::left ? text + blanks : blanks + text;
}

void end_line(std::string& out) {
  while (!out.empty() && out.back() == ' ') out.pop_back();
  out += '\n';
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  if (cells.size() != columns_.size())
    throw std::logic_error("Table::add: a row has the wrong number of cells");
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = width_of(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, width_of(row[c]));
    widths.push_back(width);
  }
  std::string out;
  const auto line = [&](auto&& cell) {
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) out += "  ";
      out += padded(cell(c), widths[c], columns_[c].align);
    }
    end_line(out);
  };
  line([&](std::size_t c) { return columns_[c].title; });
  line([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) line([&](std::size_t c) { return row[c]; });
  return out;
}

std::string fixed(double value, int decimals) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, value);
  return buffer.data();
}

std::string grouped(std::int64_t value) {
  std::string out = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;  // of the digits
  for (std::size_t at = out.size(); at > first + 3;) out.insert(at -= 3, 1, ',');
  return out;
}

std::string human_bytes(std::int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fixed(value, unit == 0 ? 0 : 1) + ' ' + kUnits[unit];
}

}  // namespace octavo::cli
