// SPDX-License-Identifier: MIT
#include "train/tasks/speech/model/predictor.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/fake.h"
#include "train/nn/recompute.h"
#include "train/nn/weight_matmul.h"

#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <tuple>

namespace octavo_train {
namespace {

constexpr std::uint32_t kFirstDropout = 1 << 20;  // dropout's layer number, above those of all encoders

// Applies an LSTM layer to x [batch, length, width], starting from a state of zeros. It computes in fp32 or
// wider, because a state that is carried through many steps loses too much precision in bf16. cuDNN expects
// the weights in one contiguous buffer in this order; otherwise it warns and copies them. In training,
// gradients are always on, because oneDNN returns different bits if they are off, and a forward pass that is
// recomputed later must give the same bits.
torch::Tensor lstm_layer(const torch::Tensor& x, const std::vector<torch::Tensor>& weights, bool training) {
  const bool wanted = torch::GradMode::is_enabled();
  const torch::AutoGradMode same_bits(wanted || training);
  const auto type = accumulation_type(x);
  std::vector<torch::Tensor> flat;
  std::vector<std::int64_t> sizes;
  for (const torch::Tensor& weight : weights) {
    flat.push_back(weight.to(type).flatten());
    sizes.push_back(weight.numel());
  }
  const torch::Tensor together = torch::cat(flat);
  if (x.is_meta()) return fake_lstm(x.to(type), together, weights[1].size(1));
  std::vector<torch::Tensor> pieces = together.split_with_sizes(sizes);
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = pieces[i].view(weights[i].sizes());
  const torch::Tensor zeros = torch::zeros({1, x.size(0), weights[1].size(1)}, x.options().dtype(type));
  const torch::Tensor out =
      std::get<0>(torch::lstm(x.to(type), {zeros, zeros}, pieces, /*has_biases=*/true, /*num_layers=*/1,
                              /*dropout=*/0.0, /*train=*/wanted || training, /*bidirectional=*/false,
                              /*batch_first=*/true));
  return wanted ? out : out.detach();
}

}  // namespace

PredictorImpl::PredictorImpl(const SpeechModelSettings& settings)
    : blank_(settings.blank()),
      width_(settings.predictor_width),
      dropout_(settings.predictor_dropout),
      recompute_(settings.checkpoint_decoder),
      embedding_(torch::nn::EmbeddingOptions(settings.vocabulary + 1, width_).padding_idx(blank_)),
      projector_(width_, settings.joint_width) {
  register_module("embedding", embedding_);
  auto lstm = std::make_shared<torch::nn::Module>("Lstm");
  const double bound = 1 / std::sqrt(static_cast<double>(width_));
  for (std::int64_t i = 0; i < settings.predictor_layers; ++i) {
    const auto add = [&](const std::string& name, at::IntArrayRef shape) {
      return lstm->register_parameter(name + "_l" + std::to_string(i),
                                      torch::empty(shape).uniform_(-bound, bound));
    };
    layers_.push_back({add("weight_ih", {4 * width_, width_}), add("weight_hh", {4 * width_, width_}),
                       add("bias_ih", {4 * width_}), add("bias_hh", {4 * width_})});
    // In a new model the biases of the forget gates add up to 1, so that the LSTM keeps its state.
    const torch::NoGradGuard no_grad;
    layers_.back().input_bias.narrow(0, width_, width_).fill_(1);
    layers_.back().hidden_bias.narrow(0, width_, width_).zero_();
  }
  register_module("lstm", lstm);
  register_module("decoder_projector", projector_);
}

// Applies the LSTM layers, with dropout after each of them.
torch::Tensor PredictorImpl::run(torch::Tensor x, const DropoutKey& pass) const {
  const NoAutocast no_autocast;
  const auto type = x.scalar_type();
  std::uint32_t number = kFirstDropout;
  for (const Lstm& layer : layers_) {
    x = lstm_layer(x, {layer.input, layer.hidden, layer.input_bias, layer.hidden_bias}, is_training());
    x = dropout(x, dropout_, is_training(), pass, number++);
  }
  return x.to(type);
}

torch::Tensor PredictorImpl::forward(const torch::Tensor& targets, const DropoutKey& pass) {
  const torch::Tensor start = torch::full({targets.size(0), 1}, blank_, targets.options());
  torch::Tensor x = torch::embedding(embedding_->weight, torch::cat({start, targets}, 1), blank_)
                        .to(compute_type(embedding_->weight));
  if (recompute_) {
    if (!x.requires_grad() && torch::GradMode::is_enabled() && layers_[0].input.requires_grad())
      x = x.detach().requires_grad_();
    x = recompute([this, pass](const std::vector<torch::Tensor>& in) { return run(in[0], pass); }, {x});
  } else {
    x = run(x, pass);
  }
  return apply_linear(x, projector_->weight, projector_->bias);
}

std::pair<torch::Tensor, PredictorState> PredictorImpl::step(const torch::Tensor& tokens,
                                                             const PredictorState& state) {
  const torch::Tensor start = torch::embedding(embedding_->weight, tokens);
  const auto type = accumulation_type(start);
  std::vector<torch::Tensor> h, c;
  torch::Tensor x = start.to(type);
  {
    const NoAutocast no_autocast;
    const torch::Tensor zeros = torch::zeros_like(x);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto number = static_cast<std::int64_t>(i);
      const auto before = [&](const torch::Tensor& t) { return t.defined() ? t[number] : zeros; };
      const Lstm& layer = layers_[i];
      const auto [hidden, cell] =
          torch::lstm_cell(x, {before(state.h), before(state.c)}, layer.input.to(type), layer.hidden.to(type),
                           layer.input_bias.to(type), layer.hidden_bias.to(type));
      h.push_back(hidden);
      c.push_back(cell);
      x = hidden;
    }
    x = x.to(compute_type(embedding_->weight));
  }
  return {apply_linear(x, projector_->weight, projector_->bias), {torch::stack(h), torch::stack(c)}};
}

}  // namespace octavo_train
