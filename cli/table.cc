// Formats tables and numbers as text; see table.h.
// SPDX-License-Identifier: MIT
#include "cli/table.h"

#include "train/base/numbers.h"
#include "train/base/utf8.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace octavo::cli {
namespace {

using octavo_train::utf8_count;

std::string padded(const std::string& text, std::size_t width, Table::Align align) {
  const std::string blanks(width - std::min(width, utf8_count(text)), ' ');
  return align == Table::Align::left ? text + blanks : blanks + text;
}

// Breaks `text` into lines of at most `width` characters. Returns at least one line.
std::vector<std::string> wrapped_lines(std::string_view text, std::size_t width, std::size_t indent = 0) {
  std::vector<std::string> out;
  std::string line;
  while (utf8_count(line) + utf8_count(text) > width) {
    const std::size_t room = width - std::min(width, utf8_count(line));
    std::size_t end =
        std::string_view::npos;  // the last blank that leaves the line short enough, or the first
    for (std::size_t at = text.find(' '); at != std::string_view::npos; at = text.find(' ', at + 1)) {
      if (end != std::string_view::npos && utf8_count(text.substr(0, at)) > room) break;
      if (text.find_first_not_of(' ') < at) end = at;
    }
    if (end == std::string_view::npos) break;  // only one long word remains
    line += text.substr(0, end);
    while (line.ends_with(' ')) line.pop_back();
    out.push_back(std::exchange(line, std::string(indent, ' ')));
    const std::size_t next = text.find_first_not_of(' ', end);
    text = next == std::string_view::npos ? std::string_view() : text.substr(next);
  }
  line += text;
  while (line.ends_with(' ')) line.pop_back();
  out.push_back(std::move(line));
  return out;
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

std::string Table::text(std::size_t width) const {
  constexpr std::size_t kGap = 2, kNarrowest = 12;
  std::vector<std::size_t> widths;
  std::size_t all = 0;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t widest = utf8_count(columns_[c].title);
    for (const auto& row : rows_) widest = std::max(widest, utf8_count(row[c]));
    widths.push_back(widest);
    all += widest + (c > 0 ? kGap : 0);
  }
  for (; all > width; --all) {
    const auto widest = std::ranges::max_element(widths);
    if (*widest <= kNarrowest) break;
    --*widest;
  }
  std::string out;
  const auto add_row = [&](auto&& cell) {
    std::vector<std::vector<std::string>> lines;  // for each column
    std::size_t height = 1;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string text = cell(c);
      lines.push_back(wrapped_lines(text, widths[c], std::min(text.find_first_not_of(' '), text.size())));
      height = std::max(height, lines[c].size());
    }
    for (std::size_t i = 0; i < height; ++i) {
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        if (c > 0) out.append(kGap, ' ');
        out += padded(i < lines[c].size() ? lines[c][i] : "", widths[c], columns_[c].align);
      }
      end_line(out);
    }
  };
  add_row([&](std::size_t c) { return columns_[c].title; });
  add_row([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) add_row([&](std::size_t c) { return row[c]; });
  return out;
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out;
  for (const std::string& line : wrapped_lines(text, width, indent)) out += (out.empty() ? "" : "\n") + line;
  return out;
}

std::size_t output_width() {
  constexpr std::size_t kElsewhere = 100;
  winsize size{};
  const bool terminal = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return terminal ? size.ws_col : kElsewhere;
}

std::string fixed(double value, int decimals) {
  return octavo_train::decimal_text(value, std::chars_format::fixed, decimals);
}

std::string grouped(std::int64_t value) {
  std::string out = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;  // index of the first digit
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
