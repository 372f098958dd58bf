// Reads JSON from one line, front to back. The parser is strict, does not recurse when it skips values, and
// reports the byte position of an error.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo_train {

// The reading functions return false on an error. Then byte() and reason() return its position and
// description, and no further value may be read.
class JsonLine {
 public:
  explicit JsonLine(std::string_view text) : text_(text) {}

  // Reads a string and resolves its escapes. The string must be UTF-8 without lone surrogates.
  bool string(std::string& out);
  bool number(double& out);
  bool boolean(bool& out);
  // Checks and skips any value. Stores its unparsed text in `out` if that is not null.
  bool skip(std::string_view* out = nullptr);
  // Skips spaces and reads the character `wanted`. `what` describes it in the error message.
  bool take(char wanted, std::string_view what);

  // Skips spaces and returns the next character without reading it, or 0 at the end of the line.
  char peek();
  bool null();   // reads `null` if it is next
  bool ended();  // true if only spaces are left

  bool fail(std::string reason);  // the error is at the next character
  bool fail_at(std::size_t byte, std::string reason);
  [[nodiscard]] std::size_t byte() const { return wrong_; }
  [[nodiscard]] std::size_t next() const { return next_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  // Returns the text at the current position for an error message, shortened to a few words.
  [[nodiscard]] std::string shown() const;

 private:
  bool word(std::string_view wanted);
  bool escape(std::string& out);
  bool hex(std::uint32_t& out);
  bool number_text(std::string_view& out);

  std::string_view text_;
  std::size_t next_ = 0;
  std::size_t wrong_ = 0;
  std::string reason_;
};

// Returns the number of bytes of the UTF-8 character at the beginning of `text`, or 0 if it is not
// well-formed.
std::size_t utf8_length(std::string_view text);
// Appends a Unicode scalar value as UTF-8.
void append_utf8(std::uint32_t point, std::string& out);

}  // namespace octavo_train
