// The transducer loss by its definition: the sum over every alignment of one clip in long double.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

namespace reference {

struct TransducerClip {
  std::int64_t frames = 1;
  std::int64_t tokens = 1;  // including blank
  std::int64_t blank = 0;
  std::vector<std::int64_t> labels;
  std::vector<std::int64_t> durations;  // empty: RNN-T
  double sigma = 0.0;
  std::vector<long double> token_logits;     // [frames, labels + 1, tokens]
  std::vector<long double> duration_logits;  // [frames, labels + 1, durations]
};

struct TransducerSum {
  long double probability = 0.0L;
  std::int64_t alignments = 0;
};
TransducerSum sum_alignments(const TransducerClip& clip);
long double transducer_loss(const TransducerClip& clip);  // infinite if there is no alignment

}  // namespace reference
