// What was heard: text, and words with their times. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/emission.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::train {

class Tokenizer;

// Times are in seconds from the beginning of the clip, in steps of a frame of the encoder.
struct HeardWord {
  std::string text;
  double begin = 0, end = 0;
  friend bool operator==(const HeardWord&, const HeardWord&) = default;
};

struct Heard {
  std::string text;
  std::vector<HeardWord> words;
  Transcript tokens;
};

// Whether the token has SentencePiece's sign for a space in front.
bool begins_word(const Tokenizer& tokenizer, std::int64_t token);

// A word lasts until its last label ends, but not into the next word. `frame_seconds`: of one of the
// encoder's frames.
Heard heard_of(Transcript tokens, const Tokenizer& tokenizer, double frame_seconds);

}  // namespace octavo::train
