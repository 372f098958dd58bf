// Tables for people: columns as wide as their widest cell, text to the left and numbers to the right.
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

  // REQUIRES: as many cells as columns.
  void add(std::vector<std::string> cells);

  // Title line, rule, rows; each line ends with '\n' and has no trailing blanks. Where lines would be longer
  // than `width` characters, the texts of the widest columns are broken at blanks.
  [[nodiscard]] std::string text(std::size_t width = std::numeric_limits<std::size_t>::max()) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `text` in lines of at most `width` characters, broken at blanks. Lines after the first are indented by
// `indent`. A word that is longer stays in one piece.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent = 0);

// The columns of the terminal that stdout is; 100 where stdout is a pipe or a file.
std::size_t output_width();

// `value` with `decimals` digits after the point.
std::string fixed(double value, int decimals);

// 124475904 as "124,475,904".
std::string grouped(std::int64_t value);

// "1.0 GiB", "512.0 MiB": bytes for people.
std::string human_bytes(std::int64_t bytes);

}  // namespace octavo::cli
