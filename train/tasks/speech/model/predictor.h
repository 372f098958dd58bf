// The prediction network of a transducer: an embedding of the previous labels, followed by LSTM layers.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"
#include "train/tasks/speech/config/model_settings.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
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

// The functions that decoding needs from a transducer. The speech model implements them; a test may implement
// its own. The caller controls gradients and autocast. Computation runs on the device of the tensors.
class TransducerHead {
 public:
  virtual ~TransducerHead() = default;

  // Projects encoder outputs [rows, frames, width] to the joint's inputs [rows, frames, hidden], bias
  // included.
  virtual torch::Tensor project_frames(const torch::Tensor& frames) = 0;

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

class PredictorImpl : public torch::nn::Module {
 public:
  explicit PredictorImpl(const SpeechModelSettings& settings);

  // Returns the joint's inputs for labels [batch, U]: [batch, U + 1, joint width]. The first position
  // precedes all labels. It uses blank's row of the embedding, which is zero in a new model and is not
  // trained.
  torch::Tensor forward(const torch::Tensor& targets, const DropoutKey& pass);

  // Implements TransducerHead::predict().
  std::pair<torch::Tensor, PredictorState> step(const torch::Tensor& tokens, const PredictorState& state);

 private:
  struct Lstm {
    torch::Tensor input, hidden, input_bias, hidden_bias;
  };
  [[nodiscard]] torch::Tensor run(torch::Tensor x, const DropoutKey& pass) const;

  std::int64_t blank_, width_;
  double dropout_;
  bool recompute_;
  torch::nn::Embedding embedding_;
  std::vector<Lstm> layers_;
  torch::nn::Linear projector_;
};
TORCH_MODULE(Predictor);

}  // namespace octavo_train
