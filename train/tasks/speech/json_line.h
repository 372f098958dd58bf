// JSON in one line, read front to back: strict, without recursion on what is skipped, and with the byte of
// what is wrong.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo::train {

// Functions give false at what is wrong; then byte() and reason() say where and what, and nothing more may be
// read.
class JsonLine {
 public:
  explicit JsonLine(std::string_view text) : text_(text) {}

  // A string with its escapes resolved; it must be UTF-8 without lone surrogates.
  bool string(std::string& out);
  bool number(double& out);
  bool boolean(bool& out);
  // Any value, checked. `out`: its text as it stands.
  bool skip(std::string_view* out = nullptr);
  // One character, after spaces.
  bool take(char wanted, std::string_view what);

  // The next character after spaces; 0 at the end.
  char peek();
  bool null();   // takes `null` if it is next
  bool ended();  // nothing but spaces is left

  bool fail(std::string reason);  // at the next character
  bool fail_at(std::size_t byte, std::string reason);
  [[nodiscard]] std::size_t byte() const { return wrong_; }
  [[nodiscard]] std::size_t next() const { return next_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  // What stands there, for a message: at most a few words.
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

// Bytes of the well-formed UTF-8 character that `text` begins with; 0: there is none.
std::size_t utf8_length(std::string_view text);
// A Unicode scalar value as UTF-8.
void append_utf8(std::uint32_t point, std::string& out);

}  // namespace octavo::train
