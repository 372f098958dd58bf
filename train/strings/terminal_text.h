// Bytes of a model as a terminal can show them. A model over bytes can write any sequence, and some would
// move the cursor, change colours or rename the window: control characters and what is no UTF-8 become \xNN.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace octavo::train {

// Byte by byte: a character of several bytes comes when its last one does.
class TerminalText {
 public:
  std::string put(char byte);
  std::string end();  // what is left of a character that was cut short

 private:
  std::string pending_;
};

std::string terminal_text(std::string_view bytes);

}  // namespace octavo::train
