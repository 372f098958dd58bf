// Escapes a model's output for a terminal. A byte-level model can generate any bytes, and some sequences
// would move the cursor, change colours or rename the window. Control characters other than newline and tab,
// and bytes that are not valid UTF-8, become \xNN.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace octavo_train {

// Escapes one byte at a time. A character of several bytes is returned with its last byte.
class TerminalText {
 public:
  std::string put(char byte);
  std::string end();  // returns the escaped bytes of an incomplete character

 private:
  std::string pending_;
};

std::string terminal_text(std::string_view bytes);

}  // namespace octavo_train
