// Greedy decoding: of each frame the most likely label, all rows of a batch at once. What a row gives does
// not depend on the rows beside it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/emission.h"
#include "train/tasks/speech/transducer_head.h"

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace octavo::train {

struct GreedyOptions {
  std::int64_t max_symbols = 10;  // labels at one frame, after which the next frame's turn comes
  // These change time alone.
  std::int64_t window = 8;            // frames that one product of the joint looks at
  std::int64_t rounds_per_check = 0;  // products until the host looks whether a row is left; 0: by the device
};

// One transcript per row of encoder outputs [rows, frames, width], of which `lengths` (int64 [rows], on their
// device) count. A label advances by its duration, be it beyond the last frame; a blank by at least 1.
// Throws c10::Error for lengths beyond the tensor and options below 1.
std::vector<Transcript> decode_greedy(TransducerHead& head, const torch::Tensor& frames,
                                      const torch::Tensor& lengths, const GreedyOptions& options = {});

// The same of CTC's scores [rows, frames, tokens with blank last]: repeated labels are one, blanks are none.
std::vector<Transcript> decode_ctc(const torch::Tensor& scores, const torch::Tensor& lengths);

}  // namespace octavo::train
