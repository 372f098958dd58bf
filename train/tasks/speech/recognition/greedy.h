// Greedy decoding: takes the most likely label of each frame, for all rows of a batch together. The result of
// a row does not depend on the other rows.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/model/predictor.h"
#include "train/tasks/speech/recognition/transcription.h"

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace octavo_train {

class SpeechModelImpl;
struct Encoded;

struct GreedyOptions {
  // The most labels at one frame. After them, decoding moves to the next frame.
  std::int64_t max_symbols = 10;
  // The options below change only the speed, not the result.
  std::int64_t window = 8;  // frames per matmul of the joint
  // Rounds (one window each) until the host checks for unfinished rows; 0: chosen by the device.
  std::int64_t rounds_per_check = 0;
};

// Returns one transcript per row of encoder outputs [rows, frames, width]. `lengths` (int64 [rows], on the
// same device) are the numbers of valid frames. A label advances by its duration, even past the last frame; a
// blank advances by at least 1. Throws c10::Error if a length exceeds the tensor, if max_symbols or window is
// below 1, or if rounds_per_check is negative.
std::vector<Transcript> decode_greedy(TransducerHead& head, const torch::Tensor& frames,
                                      const torch::Tensor& lengths, const GreedyOptions& options = {});

// Returns one transcript per row of CTC scores [rows, frames, tokens with blank last]. Repeated labels are
// merged and blanks are removed.
std::vector<Transcript> decode_ctc(const torch::Tensor& scores, const torch::Tensor& lengths);

// Returns one transcript per clip that the model has encoded, by its head.
std::vector<Transcript> decode_encoded(SpeechModelImpl& model, const Encoded& encoded);

}  // namespace octavo_train
