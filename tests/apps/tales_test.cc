// Tests the generated corpus: its bytes never change, its grammar is correct, and its text is neither trivial
// nor noise.
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/tales.h"

#include "train/tasks/text/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

namespace octavo::tales {
namespace {

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3;
  return hash;
}

std::size_t matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  return static_cast<std::size_t>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()));
}

// Changed words or grammar change the bytes, and results published on the old text are then no longer
// comparable.
TEST(MakeText, GoldenBytes) {
  const std::string text = make_text(2'000'000, 1);
  EXPECT_EQ(text.substr(0, 64), "Tale 1: How Ferfred found the red boat\n\nOnce upon a time there l");
  EXPECT_EQ(fnv1a(text), 0xDCFCD5172219AA12U);
  EXPECT_EQ(fnv1a(make_text(100'000, 2)), 0xB66DCAB78D99847FU);
}

TEST(MakeText, SizesAndSeeds) {
  EXPECT_EQ(make_text(0, 1), "");
  const std::string text = make_text(20'000, 1);
  for (const std::int64_t bytes : {1, 2, 999, 5000}) {
    EXPECT_EQ(make_text(bytes, 1), text.substr(0, static_cast<std::size_t>(bytes)));
  }
  EXPECT_NE(make_text(1000, 1).substr(10), make_text(1000, 2).substr(10));
}

TEST(MakeText, IsPlainTextInWholeTales) {
  std::set<std::string> titles;
  for (std::uint64_t tale = 1; tale <= 200; ++tale) {
    const std::string text = make_tale(3, tale);
    ASSERT_TRUE(text.starts_with("Tale " + std::to_string(tale) + ": ")) << text;
    ASSERT_TRUE(text.ends_with(".\n\n")) << text;
    titles.insert(text.substr(0, text.find('\n')).substr(text.find(' ', 5)));
    for (const char c : text) {
      ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
      ASSERT_EQ(std::string_view("<>{}[]|@^~+/=").find(c), std::string_view::npos) << text;
    }
    ASSERT_EQ(text.find("  "), std::string::npos) << text;
  }
  EXPECT_GT(titles.size(), 190U);
}

TEST(MakeText, QuotesCloseInTheirParagraph) {
  for (std::uint64_t tale = 1; tale <= 200; ++tale) {
    const std::string text = make_tale(4, tale);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find("\n\n", at), text.size());
      ASSERT_EQ(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                           text.begin() + static_cast<std::ptrdiff_t>(end), '"') %
                    2,
                0)
          << text.substr(at, end - at);
      at = end + 2;
    }
  }
}

TEST(MakeText, ArticlesAndCapitalsAgree) {
  const std::string text = make_text(200'000, 5);
  EXPECT_EQ(matches(text, R"(\b[Aa] [aeiouAEIOU])"), 0U);
  EXPECT_EQ(matches(text, R"(\b[Aa]n [^aeiouAEIOU])"), 0U);
  EXPECT_GT(matches(text, R"(\b[Aa]n [aeiou])"), 50U);
  EXPECT_EQ(matches(text, R"([.!?] [a-z])"), 0U);
  EXPECT_EQ(matches(text, R"(\." [a-z])"), 0U);
  EXPECT_EQ(matches(text, R"(\n[a-z])"), 0U);
}

// The ending of a name determines the pronoun, "he" or "she".
TEST(MakeText, PronounsAgreeWithNames) {
  const std::string text = make_text(300'000, 6);
  EXPECT_GT(matches(text, R"(whose name was [A-Z]\w*[ae]\. She )"), 5U);
  EXPECT_GT(matches(text, R"(whose name was [A-Z]\w*[a-z]\. He )"), 5U);
  EXPECT_EQ(matches(text, R"(whose name was [A-Z]\w*a\. He )"), 0U);
  EXPECT_EQ(matches(text, R"(whose name was [A-Z]\w*(win|bert|rick|ton|mund)\. She )"), 0U);
}

TEST(MakeText, EntropyIsThatOfText) {
  const std::string text = make_text(500'000, 7);
  const double entropy =
      octavo_train::unigram_entropy({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  EXPECT_GT(entropy, 2.9);
  EXPECT_LT(entropy, 3.4);
}

// Published measurements of models use these sentences; other sentences would change the figures.
TEST(Spoken, GoldenSentences) {
  std::string all = make_sentence(1, 1);
  EXPECT_EQ(all, "bring the silver feather to the forest");
  std::set<std::string> words, sentences;
  for (std::uint64_t i = 2; i <= 5001; ++i) {
    const std::string sentence = make_sentence(1, i);
    ASSERT_EQ(sentence.find_first_not_of("abcdefghijklmnopqrstuvwxyz "), std::string::npos) << sentence;
    ASSERT_LT(sentence.size(), 70U) << sentence;
    sentences.insert(sentence);
    all += '\n' + sentence;
    for (std::size_t at = 0; at < sentence.size();) {
      const std::size_t end = std::min(sentence.find(' ', at), sentence.size());
      ASSERT_GT(end, at) << sentence;
      words.insert(sentence.substr(at, end - at));
      at = end + 1;
    }
  }
  EXPECT_GT(sentences.size(), 4500U);
  EXPECT_GT(words.size(), 150U);
  EXPECT_LT(words.size(), 300U);
  EXPECT_EQ(fnv1a(all), 12280889681949705600U);
}

}  // namespace
}  // namespace octavo::tales
