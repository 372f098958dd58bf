// Tables for people: columns as wide as their widest cell, text to the left and numbers to the right.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
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

  // Title line, rule, rows; each line ends with '\n' and has no trailing blanks.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `value` with `decimals` digits after the point.
std::string fixed(double value, int decimals);

// 124475904 as "124,475,904".
std::string grouped(std::int64_t value);

// "1.0 GiB", "512.0 MiB": bytes for people.
std::string human_bytes(std::int64_t bytes);

}  // namespace octavo::cli
