// What decoding asks of a transducer: three steps and two facts. The speech model has them; a test may have
// its own. Gradients and autocast are the caller's, and so is the device, which is that of the tensors.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace octavo::train {

// What the prediction network remembers of a row's labels: [layers, rows, hidden] each. Undefined tensors are
// the state before the first label, which is zero.
struct PredictorState {
  torch::Tensor h, c;
};

class TransducerHead {
 public:
  virtual ~TransducerHead() = default;

  // Encoder outputs [rows, frames, width] as the joint takes them: [rows, frames, hidden], bias included.
  virtual torch::Tensor project(const torch::Tensor& frames) = 0;

  // One label further: tokens are int64 [rows], and blank is the start, whose row of the embedding is zero in
  // NeMo's files. Gives what the joint takes, [rows, hidden] with its bias, and the state after it. Without
  // dropout.
  virtual std::pair<torch::Tensor, PredictorState> predict(const torch::Tensor& tokens,
                                                           const PredictorState& state) = 0;

  // Logits [cells, outputs] of pairs f, g [cells, hidden]: tokens with blank last, then durations.
  virtual torch::Tensor joint(const torch::Tensor& f, const torch::Tensor& g) = 0;

  // The number of the blank token, which is also the number of tokens without it.
  [[nodiscard]] virtual std::int64_t blank() const = 0;

  // Frames by which an arc advances, in the order of their outputs. Empty for a plain RNN-T: a label stays,
  // and a blank advances by 1.
  [[nodiscard]] virtual const std::vector<std::int64_t>& durations() const = 0;
};

}  // namespace octavo::train
