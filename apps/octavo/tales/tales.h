// Generates text from a grammar, for demos and tests that cannot download any: tales, a corpus of short
// English texts, and short sentences for speech synthesis.
//
// The tales have structure that a small model can learn (agreement, names and pronouns that recur in a tale,
// answers that repeat a word of the question) and enough randomness that they cannot be memorized.
//
// The bytes depend only on the seed and are computed with integer arithmetic, so they are the same on every
// machine. Changing the words or the grammar (grammar.cc) changes them: tests check hashes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo::tales {

class TextMaker {
 public:
  explicit TextMaker(std::uint64_t seed) : seed_(seed) {}

  // Returns the next tale: a heading and its paragraphs, about 1 kB of ASCII that end with an empty line.
  std::string next();

 private:
  std::uint64_t seed_;
  std::uint64_t tales_ = 0;
};

// Returns the first `bytes` bytes of all tales; a shorter text is a prefix of a longer one. REQUIRES: bytes
// >= 0.
std::string make_text(std::int64_t bytes, std::uint64_t seed);

class SentenceMaker {
 public:
  explicit SentenceMaker(std::uint64_t seed) : seed_(seed) {}

  // Returns the next sentence: a few words of a vocabulary of about two hundred, in lower case, without
  // punctuation and without a line break. Sentences may repeat.
  std::string next();

 private:
  std::uint64_t seed_;
  std::uint64_t sentences_ = 0;
};

extern const std::string_view kGrammar;  // the rules, in the notation that grammar.cc describes

}  // namespace octavo::tales
