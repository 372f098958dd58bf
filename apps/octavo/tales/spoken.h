// Generates short sentences for speech synthesis: a few words each, from a vocabulary of about two hundred,
// in lower case and without punctuation, so that a small model can learn to transcribe them.
//
// Like the tales, the sentences depend only on the seed. Changing the words or the grammar changes them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace octavo::tales {

class SentenceMaker {
 public:
  explicit SentenceMaker(std::uint64_t seed) : seed_(seed) {}

  // Returns the next sentence, without a line break. Sentences may repeat.
  std::string next();

 private:
  std::uint64_t seed_;
  std::uint64_t sentences_ = 0;
};

}  // namespace octavo::tales
