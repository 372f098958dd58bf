// The functions that decoding needs from a transducer: three steps and two constants. The speech model
// implements them; a test may implement its own. The caller controls gradients and autocast. Computation runs
// on the device of the tensors.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace octavo_train {

// The LSTM state of the prediction network after a row's labels: [layers, rows, hidden] each. Undefined
// tensors are the state before the first label, which is zero.
struct PredictorState {
  torch::Tensor h, c;
};

class TransducerHead {
 public:
  virtual ~TransducerHead() = default;

  // Projects encoder outputs [rows, frames, width] to the joint's inputs [rows, frames, hidden], bias
  // included.
  virtual torch::Tensor weight_matmul(const torch::Tensor& frames) = 0;

  // Advances the prediction network by one label per row, without dropout. Tokens are int64 [rows]. At the
  // start of a row the token is blank, whose row of the embedding is zero in NeMo's files. Returns the
  // joint's inputs [rows, hidden], bias included, and the new state.
  virtual std::pair<torch::Tensor, PredictorState> predict(const torch::Tensor& tokens,
                                                           const PredictorState& state) = 0;

  // Returns the logits [cells, outputs] of pairs f, g [cells, hidden]: tokens with blank last, then
  // durations.
  virtual torch::Tensor joint(const torch::Tensor& f, const torch::Tensor& g) = 0;

  // Returns the number of the blank token, which is also the number of tokens without it.
  [[nodiscard]] virtual std::int64_t blank() const = 0;

  // Returns the frames by which an arc advances, in the order of the outputs. Empty for a plain RNN-T: a
  // label does not advance, and a blank advances by 1.
  [[nodiscard]] virtual const std::vector<std::int64_t>& durations() const = 0;
};

}  // namespace octavo_train
