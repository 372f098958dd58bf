// The prediction network of a transducer: an embedding of the previous labels, followed by LSTM layers.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/model/transducer_head.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <utility>
#include <vector>

namespace octavo_train {

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
