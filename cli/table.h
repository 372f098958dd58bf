// Formats tables as text: columns as wide as their widest cell, text left-aligned and numbers right-aligned.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::cli {

class Table {
 public:
  enum class Align : std::uint8_t { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: one cell per column.
  void add(std::vector<std::string> cells);

  // Returns the title line, the rule and the rows. Each line ends with '\n' and has no trailing blanks. If
  // lines would exceed `width` characters, the texts of the widest columns are broken at blanks.
  [[nodiscard]] std::string text(std::size_t width = std::numeric_limits<std::size_t>::max()) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Breaks `text` at blanks into lines of at most `width` characters. Lines after the first are indented by
// `indent`. Longer words are not broken.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent = 0);

// Returns the width of the terminal in columns, or 100 if stdout is a pipe or a file.
std::size_t output_width();

// Formats `value` with `decimals` digits after the point.
std::string fixed(double value, int decimals);

// Formats 124475904 as "124,475,904".
std::string grouped(std::int64_t value);

// Formats a byte count with a binary unit: "1.0 GiB", "512.0 MiB".
std::string human_bytes(std::int64_t bytes);

}  // namespace octavo::cli
