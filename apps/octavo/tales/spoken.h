// Short sentences to be read aloud: a few words each, of about two hundred different ones, in small letters
// and without punctuation, so that a small model can learn to hear them.
//
// The sentences follow from the seed alone, as the tales do. A change of the words or the grammar changes
// them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace octavo::tales {

class SentenceMaker {
 public:
  explicit SentenceMaker(std::uint64_t seed) : seed_(seed) {}

  // The next sentence, without a line's end. It may be one that was there before.
  std::string next();

 private:
  std::uint64_t seed_;
  std::uint64_t sentences_ = 0;
};

}  // namespace octavo::tales
