// See assignments.h.
// SPDX-License-Identifier: MIT
#include "train/config/assignments.h"

#include <algorithm>
#include <array>

namespace octavo_train {
namespace {

constexpr std::string_view kBlank = " \t\r";
constexpr std::string_view kNone = "None", kNull = "null";

// Removes the next line, with its line break, from `text` and returns it.
std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
  text.remove_prefix(line.size());
  return line;
}

// Returns the position of the `=` of an assignment; npos if the line is not an assignment.
std::size_t equals_in(std::string_view line) {
  constexpr std::string_view kFirst = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789.";
  if (line.empty() || kFirst.find(line[0]) == std::string_view::npos) return std::string_view::npos;
  const std::size_t end = line.find_first_not_of(kName);
  if (end == std::string_view::npos) return end;
  const std::size_t at = line.find_first_not_of(" \t", end);
  const bool is_one = at != std::string_view::npos && line[at] == '=' && line.substr(at, 2) != "==";
  return is_one ? at : std::string_view::npos;
}

// Returns true if a line without indentation begins a Python statement other than an assignment. No key of a
// config is one of these words.
bool is_code(std::string_view line) {
  constexpr std::array<std::string_view, 12> kWords = {"import", "from", "def", "class", "if",     "for",
                                                       "while",  "with", "try", "async", "assert", "del"};
  constexpr std::string_view kDocstring = "\"\"\"";
  if (line.starts_with('@') || line.starts_with(kDocstring) || line.starts_with("'''")) return true;
  const std::size_t end = std::min(line.find_first_of(" \t(:="), line.size());
  if (end == 0 || end == line.size()) return false;
  const std::string_view word = line.substr(0, end);
  if (line[end] == '(') return word.find_first_of("#'\"[{") == std::string_view::npos;  // a call
  if (std::ranges::find(kWords, word) == kWords.end()) return false;
  if (word == "try") return line[end] == ':';
  const std::size_t next = line.find_first_not_of(" \t", end);
  return next != std::string_view::npos && line[next] != ':' && line[next] != '=';
}

// Returns the value after the `=`, with None replaced by null.
std::string value_text(std::string_view rest) {
  std::string out(rest);
  const std::size_t begin = rest.find_first_not_of(kBlank);
  if (begin == std::string_view::npos || rest.substr(begin, kNone.size()) != kNone) return out;
  const std::string_view after = rest.substr(begin + kNone.size());
  const bool is_all = after.empty() || kBlank.find(after[0]) != std::string_view::npos || after[0] == '\n';
  if (is_all) out.replace(begin, kNone.size(), kNull);
  return out;
}

}  // namespace

bool has_assignments(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    const std::size_t begin = line.find_first_not_of(" \t\r\n");
    if (begin != std::string_view::npos && line[begin] != '#')
      return equals_in(line) != std::string_view::npos;
  }
  return false;
}

std::optional<CodeLine> find_code(std::string_view text) {
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (is_code(line)) return CodeLine{number, line.substr(0, line.find_last_not_of(" \t\r\n") + 1)};
  }
  return std::nullopt;
}

CodeLine line_of(std::string_view text, int number) {
  for (int before = 1; before < number && !text.empty(); ++before) take_line(text);
  if (text.empty()) return {number, {}};
  std::string_view line = take_line(text);
  line.remove_prefix(std::min(line.find_first_not_of(" \t\r\n"), line.size()));
  return {number, line.substr(0, line.find_last_not_of(" \t\r\n") + 1)};
}

std::string assignments_as_yaml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    const std::size_t equals = equals_in(line);
    if (equals == std::string_view::npos) {
      out += line;
      continue;
    }
    const std::string_view rest = line.substr(equals + 1);
    const bool has_room = rest.empty() || rest[0] == '\n' || kBlank.find(rest[0]) != std::string_view::npos;
    out.append(line.substr(0, equals)).append(has_room ? ":" : ": ").append(value_text(rest));
  }
  return out;
}

}  // namespace octavo_train
