// Generates a corpus from a grammar: short tales in English, for demos and tests that cannot download one. It
// has structure that a small model can learn (agreement, names and pronouns that recur in a tale, closing
// quotes, numbered chapters) and enough randomness that it cannot be memorized.
//
// The bytes depend only on the seed and are computed with integer arithmetic, so they are the same on every
// machine. A shorter text is a prefix of a longer one. Changing the words or the grammar changes every byte:
// tests check a hash.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace octavo::tales {

class TextMaker {
 public:
  explicit TextMaker(std::uint64_t seed) : seed_(seed) {}

  // Returns the next tale: a heading and its paragraphs, a few kB of ASCII that end with an empty line.
  std::string next();

 private:
  std::uint64_t seed_;
  std::uint64_t tales_ = 0;
};

// Returns the first `bytes` bytes of all tales. REQUIRES: bytes >= 0.
std::string make_text(std::int64_t bytes, std::uint64_t seed);

}  // namespace octavo::tales
