// Tests how text written by a model is prepared for a terminal.
// SPDX-License-Identifier: MIT
#include "train/base/terminal_text.h"

#include <gtest/gtest.h>

namespace octavo_train {
namespace {

using namespace std::string_literals;

TEST(TerminalText, TextPassesAndControlsDoNot) {
  const std::string text = "Once,\n\tsaid \xC3\xA9, \xE2\x82\xAC and \xF0\x9F\x98\x80.";
  EXPECT_EQ(terminal_text(text), text);
  EXPECT_EQ(terminal_text("\x1b[31mred\x07\r\x7f\0"s), "\\x1b[31mred\\x07\\x0d\\x7f\\x00");
  EXPECT_EQ(terminal_text("\xC2\x9B"
                          "2J"),
            "\\xc2\\x9b2J")
      << "the control sequence introducer of 8 bits";
  EXPECT_EQ(terminal_text("a\xC2"), "a\\xc2") << "cut short";
  EXPECT_EQ(terminal_text("\xE2\x82z"), "\\xe2\\x82z");
  EXPECT_EQ(terminal_text("\xC3\xC3\xA9"), "\\xc3\xC3\xA9");
  EXPECT_EQ(terminal_text("\x80\xBF\xFF\xF5"), "\\x80\\xbf\\xff\\xf5");
  EXPECT_EQ(terminal_text("\xC0\x8A"), "\\xc0\\x8a") << "a long form of a line break";
  EXPECT_EQ(terminal_text("\xE0\x82\x9B"), "\\xe0\\x82\\x9b") << "and of a control character";
  EXPECT_EQ(terminal_text("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(terminal_text("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above the last character";
}

TEST(TerminalText, ByteByByte) {
  TerminalText text;
  EXPECT_EQ(text.put('\xE2'), "");
  EXPECT_EQ(text.put('\x82'), "");
  EXPECT_EQ(text.put('\xAC'), "\xE2\x82\xAC");
  EXPECT_EQ(text.put('\xC3'), "");
  EXPECT_EQ(text.put('x'), "\\xc3x");
  EXPECT_EQ(text.end(), "");
}

// For any bytes, no byte is lost and no control character remains.
TEST(TerminalText, EveryPairOfBytes) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string out = terminal_text(std::string{static_cast<char>(first), static_cast<char>(second)});
      ASSERT_GE(out.size(), 2u);
      for (const char c : out)
        ASSERT_TRUE(c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20) << first;
    }
  }
}

}  // namespace
}  // namespace octavo_train
