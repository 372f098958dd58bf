// Tests the word error rate: words, counts and alignment, against a search over all alignments.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

namespace octavo_train {
namespace {

using Words = std::vector<std::string_view>;

TEST(Wer, WordsAreWhatWhitespaceSeparates) {
  EXPECT_EQ(split_words(""), Words{});
  EXPECT_EQ(split_words(" \t\r\n\v\f"), Words{});
  EXPECT_EQ(split_words("one"), Words{"one"});
  EXPECT_EQ(split_words("  one\ttwo \n three "), (Words{"one", "two", "three"}));
  // The first list has characters that Python's str.split() treats as whitespace, the second list others.
  for (const char* space : {"\x1c", "\x1d", "\x1e", "\x1f", "\u0085", "\u00a0", "\u1680", "\u2000", "\u2005",
                            "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"}) {
    const std::string text = std::string(space) + "à" + space + space + "b" + space;
    EXPECT_EQ(split_words(text), (Words{"à", "b"})) << text;
  }
  for (const char* other :
       {"\u200b", "\u2060", "\ufeff", "\u180e", "\x1b", "\x7f", "\u0084", "\u00a1", "\u3001"}) {
    const std::string text = std::string("a") + other + "b";
    EXPECT_EQ(split_words(text), Words{text}) << text;
  }
  // Not UTF-8: a truncated character, a continuation byte, an overlong blank.
  for (const std::string text : {"a\xe3\x80", "\x80\xa0z", "a\xc0\xa0z", "\xe2\x80"}) {
    EXPECT_EQ(split_words(text), Words{text});
  }
  EXPECT_EQ(split_words(std::string_view("a\0b c", 5)), (Words{std::string_view("a\0b", 3), "c"}));
}

TEST(Wer, CountsOfKnownTexts) {
  const auto errors = [](std::int64_t substitutions, std::int64_t deletions, std::int64_t insertions,
                         std::int64_t words) {
    return WordErrors{substitutions, deletions, insertions, words};
  };
  EXPECT_EQ(word_errors("", ""), errors(0, 0, 0, 0));
  EXPECT_EQ(word_errors("", "a b"), errors(0, 0, 2, 0));
  EXPECT_EQ(word_errors("a b c", " "), errors(0, 3, 0, 3));
  EXPECT_EQ(word_errors("the cat sat", "the cat sat"), errors(0, 0, 0, 3));
  EXPECT_EQ(word_errors("the cat sat", "The cat, sat"), errors(2, 0, 0, 3));
  EXPECT_EQ(word_errors("the cat sat", "the sat"), errors(0, 1, 0, 3));
  EXPECT_EQ(word_errors("the sat", "the cat sat"), errors(0, 0, 1, 2));
  EXPECT_EQ(word_errors("a a a a", "a a"), errors(0, 2, 0, 4));
  EXPECT_EQ(word_errors("a b", "b c"), errors(2, 0, 0, 2));  // not a deletion and an insertion
  EXPECT_EQ(word_errors("a\u3000b", "a b"), errors(0, 0, 0, 2));
}

TEST(Wer, SumsOverASet) {
  WordErrors sum;
  sum += word_errors("a b c", "a x c d");
  sum += word_errors("", "y");
  sum += word_errors("e f", "e");
  EXPECT_EQ(sum, (WordErrors{1, 1, 2, 5}));
  EXPECT_EQ(sum.errors(), 4);
  EXPECT_DOUBLE_EQ(sum.rate(), 0.8);
  EXPECT_DOUBLE_EQ(word_errors("a", "b c d").rate(), 3.0);
  EXPECT_EQ(word_errors("", "").rate(), 0.0);
  EXPECT_TRUE(std::isinf(word_errors("", "a").rate()));
}

TEST(Wer, AlignmentOfRepeatedWords) {
  using Alignment = std::vector<AlignedWord>;
  EXPECT_EQ(align_words("a a", "a"),
            (Alignment{{Edit::deletion, "a", ""}, {Edit::none, "a", "a"}}));  // words are paired from the end
  EXPECT_EQ(align_words("x y", "z"), (Alignment{{Edit::deletion, "x", ""}, {Edit::substitution, "y", "z"}}));
  EXPECT_EQ(align_words("z", "x y"), (Alignment{{Edit::insertion, "", "x"}, {Edit::substitution, "z", "y"}}));
}

// Enumerates every alignment from the last edit; keeps the first alignment with the fewest edits.
struct Search {
  const Words &reference, &hypothesis;
  std::vector<AlignedWord> path, best;
  std::int64_t edits = 0, fewest = 1 << 20;

  void from(std::size_t i, std::size_t j) {
    if (i == 0 && j == 0) {
      if (edits < fewest) {
        fewest = edits;
        best.assign(path.rbegin(), path.rend());
      }
      return;
    }
    if (i > 0 && j > 0) {
      const bool same = reference[i - 1] == hypothesis[j - 1];
      take({same ? Edit::none : Edit::substitution, reference[i - 1], hypothesis[j - 1]}, i - 1, j - 1);
    }
    if (i > 0) take({Edit::deletion, reference[i - 1], ""}, i - 1, j);
    if (j > 0) take({Edit::insertion, "", hypothesis[j - 1]}, i, j - 1);
  }

  void take(const AlignedWord& word, std::size_t i, std::size_t j) {
    const std::int64_t cost = word.edit == Edit::none ? 0 : 1;
    path.push_back(word);
    edits += cost;
    from(i, j);
    edits -= cost;
    path.pop_back();
  }
};

TEST(Wer, EqualsTheBestOfAllAlignments) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const auto text = [&] {
      std::string out;
      for (auto left = random() % 6; left > 0; --left) out += std::string{"abc"[random() % 3], ' '};
      return out;
    };
    const std::string reference = text(), hypothesis = text();
    const Words rows = split_words(reference), columns = split_words(hypothesis);
    Search search{rows, columns, {}, {}};
    search.from(rows.size(), columns.size());
    ASSERT_EQ(align_words(reference, hypothesis), search.best) << reference << "| " << hypothesis;
    const WordErrors errors = word_errors(reference, hypothesis);
    ASSERT_EQ(errors.errors(), search.fewest);
    ASSERT_EQ(errors.words, static_cast<std::int64_t>(rows.size()));
    ASSERT_EQ(errors.words - errors.deletions + errors.insertions, static_cast<std::int64_t>(columns.size()));
  }
}

}  // namespace
}  // namespace octavo_train
