// A corpus made by a grammar: short tales in English, for demos and tests that cannot download one. It has
// structure that a small model can learn (agreement, names and pronouns that recur in a tale, quotes that
// close, chapters that are counted) and enough chance that it cannot be learnt by heart.
//
// The bytes follow from the seed by integer arithmetic alone, so they are the same on every machine, and a
// shorter text is the beginning of a longer one. A change of the words or the grammar changes every byte:
// tests keep a hash.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace octavo::tales {

class TextMaker {
 public:
  explicit TextMaker(std::uint64_t seed) : seed_(seed) {}

  // The next tale: a heading and its paragraphs, a few kB of ASCII that end with an empty line.
  std::string next();

 private:
  std::uint64_t seed_;
  std::uint64_t tales_ = 0;
};

// The first `bytes` bytes of all tales. REQUIRES: bytes >= 0.
std::string make_text(std::int64_t bytes, std::uint64_t seed);

}  // namespace octavo::tales
