// SPDX-License-Identifier: MIT
#include "train/tasks/speech/model/encoder.h"

#include "train/nn/attention.h"
#include "train/nn/convolution.h"
#include "train/nn/recompute.h"
#include "train/nn/residual.h"
#include "train/nn/subsampling.h"
#include "train/nn/weight_matmul.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace octavo_train {
namespace {

// The maximum number of elements in the largest activation (the output of the first convolution) of the clips
// that are recomputed together. It corresponds to 16 clips of 20 s, with 256 channels and 128 bands.
constexpr std::int64_t kLargestPart = std::int64_t{1} << 28;

SubsamplingWeights weights_of(const std::vector<torch::Tensor>& c) {
  return {c[0], c[1], {{{c[2], c[3], c[4], c[5]}, {c[6], c[7], c[8], c[9]}}}};
}

torch::Tensor subsampled_features(const std::vector<torch::Tensor>& inputs,
                                  const std::vector<torch::Tensor>& weights) {
  return subsample(inputs[0], inputs[1], weights_of(weights));
}

// The dropouts of a layer, in execution order. Number 0 is the dropout of the encoder's input.
enum : std::uint32_t {
  kInFirst,
  kFirst,
  kProbabilities,
  kAttention,
  kConvolution,
  kInSecond,
  kSecond,
  kDropouts
};
constexpr std::uint32_t kInputDropout = 0;

constexpr double kEps = 1e-5;

torch::nn::Linear make_linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// Returns sinusoidal position encodings [2 length - 1, width]. Row r encodes the distance length - 1 - r,
// with sine and cosine alternating. The period grows from 2 pi to nearly 10,000 * 2 pi along the row.
torch::Tensor make_positions(std::int64_t length, std::int64_t width, const torch::Device& device) {
  const auto options = torch::TensorOptions(torch::kFloat32).device(device);
  const torch::Tensor distance = torch::arange(length - 1, -length, -1, options).unsqueeze(1);
  const torch::Tensor frequency =
      torch::exp(torch::arange(0, width, 2, options) * (-std::log(10000.0) / static_cast<double>(width)));
  const torch::Tensor angle = distance * frequency;
  return torch::stack({angle.sin(), angle.cos()}, 2).flatten(1);
}

bool is_trained(const torch::nn::Module& module) {
  const std::vector<torch::Tensor> all = module.parameters();
  return torch::GradMode::is_enabled() && std::ranges::any_of(all, &torch::Tensor::requires_grad);
}

}  // namespace

SubsamplingImpl::SubsamplingImpl(const SpeechModelSettings& settings)
    : recompute_(settings.checkpoint_encoder) {
  const std::int64_t channels = settings.subsampling_channels;
  auto layers = std::make_shared<torch::nn::Module>("Layers");
  const auto convolution = [&](int number, const torch::nn::Conv2dOptions& options) {
    const torch::nn::Conv2d conv(options);
    layers->register_module(std::to_string(number), conv.ptr());
    convolutions_.insert(convolutions_.end(), {conv->weight, conv->bias});
  };
  // The module numbers in between belong to ReLU.
  convolution(0, torch::nn::Conv2dOptions(1, channels, 3));
  for (const int number : {2, 5}) {
    convolution(number, torch::nn::Conv2dOptions(channels, channels, 3).groups(channels));
    convolution(number + 1, torch::nn::Conv2dOptions(channels, channels, 1));
  }
  register_module("layers", layers);
  const torch::nn::Linear projection(channels * subsampled(settings.mel_bands), settings.width);
  register_module("linear", projection);
  weight_ = projection->weight;
  bias_ = projection->bias;
}

torch::Tensor SubsamplingImpl::forward(const torch::Tensor& features, const torch::Tensor& lengths) {
  const std::vector<torch::Tensor> inputs = {features.to(compute_type(weight_)), lengths};
  if (!recompute_) return apply_linear(subsampled_features(inputs, convolutions_), weight_, bias_);
  const std::int64_t of_a_clip =
      std::max<std::int64_t>(1, convolutions_[0].size(0) * features.size(1) * features.size(2) / 4);
  const std::int64_t at_once = std::max<std::int64_t>(1, kLargestPart / of_a_clip);
  return apply_linear(recompute_rows(subsampled_features, inputs, convolutions_, at_once), weight_, bias_);
}

ConformerLayerImpl::ConformerLayerImpl(const SpeechModelSettings& settings, std::int64_t number)
    : width_(settings.width),
      ff_width_(settings.feed_forward),
      heads_(settings.heads),
      dropout_(settings.dropout),
      attention_dropout_(settings.attention_dropout),
      freeze_batch_norm_(settings.freeze_batch_norm),
      first_drop_(1 + static_cast<std::uint32_t>(number) * kDropouts),
      feed_forward1_(make_feed_forward("feed_forward1")) {
  auto attention = std::make_shared<torch::nn::Module>("Attention");
  bias_u_ = attention->register_parameter("bias_u", torch::zeros({heads_, width_ / heads_}));
  bias_v_ = attention->register_parameter("bias_v", torch::zeros({heads_, width_ / heads_}));
  const auto projection = [&](const char* name) {
    return attention->register_module(name, make_linear(width_, width_));
  };
  q_ = projection("q_proj");
  k_ = projection("k_proj");
  v_ = projection("v_proj");
  o_ = projection("o_proj");
  place_ = projection("relative_k_proj");
  register_module("self_attn", attention);
  auto convolution = std::make_shared<torch::nn::Module>("Convolution");
  using Options = torch::nn::Conv1dOptions;
  into_ = convolution->register_module("pointwise_conv1",
                                       torch::nn::Conv1d(Options(width_, 2 * width_, 1).bias(false)));
  depthwise_ = convolution->register_module(
      "depthwise_conv",
      torch::nn::Conv1d(Options(width_, width_, settings.kernel).groups(width_).bias(false)));
  batch_norm_ = convolution->register_module("norm", torch::nn::BatchNorm1d(width_));
  out_of_ = convolution->register_module("pointwise_conv2",
                                         torch::nn::Conv1d(Options(width_, width_, 1).bias(false)));
  register_module("conv", convolution);
  feed_forward2_ = make_feed_forward("feed_forward2");
  before_first_ = make_norm("norm_feed_forward1");
  before_attention_ = make_norm("norm_self_att");
  before_convolution_ = make_norm("norm_conv");
  before_second_ = make_norm("norm_feed_forward2");
  after_ = make_norm("norm_out");
}

ConformerLayerImpl::FeedForward ConformerLayerImpl::make_feed_forward(const std::string& name) {
  auto module = std::make_shared<torch::nn::Module>("FeedForward");
  FeedForward out{module->register_module("linear1", make_linear(width_, ff_width_)),
                  module->register_module("linear2", make_linear(ff_width_, width_))};
  register_module(name, module);
  return out;
}

torch::nn::LayerNorm ConformerLayerImpl::make_norm(const std::string& name) {
  return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width_})));
}

torch::Tensor ConformerLayerImpl::feed_forward(const FeedForward& block, const torch::Tensor& x,
                                               const Drop& drop) const {
  return apply_linear(silu_dropout(apply_linear(x, block.first->weight), drop), block.second->weight);
}

torch::Tensor ConformerLayerImpl::attention(const torch::Tensor& x, const torch::Tensor& positions,
                                            const torch::Tensor& lengths, const Drop& drop) const {
  const auto heads = [&](const torch::Tensor& y) { return y.unflatten(-1, {heads_, width_ / heads_}); };
  return apply_linear(
      relative_attention(heads(apply_linear(x, q_->weight)), heads(apply_linear(x, k_->weight)),
                         heads(apply_linear(x, v_->weight)), heads(apply_linear(positions, place_->weight)),
                         bias_u_, bias_v_, lengths, drop),
      o_->weight);
}

torch::Tensor ConformerLayerImpl::convolution(const torch::Tensor& x, const torch::Tensor& lengths) {
  const torch::nn::BatchNorm1dImpl& bn = *batch_norm_;
  BatchNorm norm{.weight = bn.weight,
                 .bias = bn.bias,
                 .running_mean = bn.running_mean,
                 .running_var = bn.running_var,
                 .num_batches_tracked = bn.num_batches_tracked,
                 .frozen = freeze_batch_norm_};
  const torch::Tensor gates = apply_linear(x, into_->weight);
  return apply_linear(conv_module(gates, lengths, depthwise_->weight, norm, is_training()), out_of_->weight);
}

torch::Tensor ConformerLayerImpl::forward(const torch::Tensor& x, const torch::Tensor& positions,
                                          const torch::Tensor& lengths, const DropoutKey& pass) {
  const auto drop = [&](double probability, std::uint32_t which) {
    return Drop{probability, is_training(), pass, first_drop_ + which};
  };
  // The residual sum so far, and its layer norm, which is the next block's input.
  torch::Tensor sum = x, in = layer_norm(x, before_first_->weight, before_first_->bias, kEps);
  const auto add = [&](const torch::Tensor& y, double scale, const torch::nn::LayerNorm& next,
                       std::uint32_t which) {
    std::tie(sum, in) = add_norm(sum, y, scale, next->weight, next->bias, kEps, drop(dropout_, which));
  };
  add(feed_forward(feed_forward1_, in, drop(dropout_, kInFirst)), 0.5, before_attention_, kFirst);
  add(attention(in, positions, lengths, drop(attention_dropout_, kProbabilities)), 1.0, before_convolution_,
      kAttention);
  add(convolution(in, lengths), 1.0, before_second_, kConvolution);
  add(feed_forward(feed_forward2_, in, drop(dropout_, kInSecond)), 0.5, after_, kSecond);
  return in;
}

EncoderImpl::EncoderImpl(const SpeechModelSettings& settings)
    : width_(settings.width),
      dropout_(settings.input_dropout),
      recompute_(settings.checkpoint_encoder),
      subsampling_(register_module("subsampling", Subsampling(settings))) {
  auto layers = std::make_shared<torch::nn::Module>("Layers");
  for (std::int64_t i = 0; i < settings.encoder_layers; ++i)
    layers_.emplace_back(layers->register_module(std::to_string(i), ConformerLayer(settings, i)));
  register_module("layers", layers);
}

// Returns the position encodings of a clip. The encodings of a shorter clip are the middle rows of a longer
// clip's table, so one table is kept and only grows.
torch::Tensor EncoderImpl::positions(std::int64_t length, const torch::TensorOptions& options) {
  const auto most = [&] { return (positions_.size(0) + 1) / 2; };
  if (!positions_.defined() || most() < length || positions_.device() != options.device() ||
      positions_.dtype() != options.dtype()) {
    const torch::NoGradGuard no_grad;
    positions_ = make_positions(length, width_, options.device()).to(options.dtype());
  }
  return positions_.narrow(0, most() - length, 2 * length - 1);
}

Encoded EncoderImpl::forward(const torch::Tensor& features, const torch::Tensor& lengths,
                             const DropoutKey& pass) {
  if (gate_) gate_(*subsampling_);
  torch::Tensor x = dropout(subsampling_(features, lengths), dropout_, is_training(), pass, kInputDropout);
  const torch::Tensor left = (lengths + (kSubsampling - 1)).div(kSubsampling, "floor");
  const torch::Tensor places = positions(x.size(1), x.options());
  for (ConformerLayer& layer : layers_) {
    if (gate_) gate_(*layer);
    if (!recompute_) {
      x = layer(x, places, left, pass);
      continue;
    }
    // recompute() keeps all activations if no input requires a gradient. x requires none if no earlier layer
    // is trained, so x is then replaced by a detached tensor that does.
    if (!x.requires_grad() && is_trained(*layer)) x = x.detach().requires_grad_();
    const auto run = [layer = layer.get(), pass](const std::vector<torch::Tensor>& in) {
      return layer->forward(in[0], in[1], in[2], pass);
    };
    x = recompute(run, {x, places, left}, layer->buffers());
  }
  return {x, left};
}

}  // namespace octavo_train
