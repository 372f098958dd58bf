// SPDX-License-Identifier: MIT
#include "models/bdh.h"

#include "checkpointing.h"

#include <torch/nn/functional.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

namespace octavo::train {
namespace {

constexpr double kTheta = 65536.0;
constexpr double kTurn = 2.0 * 3.14159265358979323846;

torch::Tensor normal(at::IntArrayRef shape) { return torch::empty(shape).normal_(0.0, 0.02); }

torch::Tensor layer_norm(const torch::Tensor& x) {
  namespace F = torch::nn::functional;
  return F::layer_norm(x, F::LayerNormFuncOptions({x.size(-1)}));
}

// Neurons turn in pairs, each pair at its own pace: from one turn in 2 pi positions to one in nearly theta
// times that.
torch::Tensor turns_per_position(std::int64_t neurons) {
  const torch::Tensor pair = (torch::arange(neurons, torch::kFloat32) / 2).floor() * 2;
  return 1.0 / torch::pow(kTheta, pair / static_cast<double>(neurons)) / kTurn;
}

torch::Tensor rotate(const torch::Tensor& v, const torch::Tensor& cosines, const torch::Tensor& sines) {
  using torch::indexing::None;
  using torch::indexing::Slice;
  const torch::Tensor even = v.index({"...", Slice(None, None, 2)});
  const torch::Tensor odd = v.index({"...", Slice(1, None, 2)});
  const torch::Tensor turned = torch::stack({-odd, even}, -1).view(v.sizes());
  return (v * cosines).to(v.dtype()) + (turned * sines).to(v.dtype());
}

}  // namespace

BdhImpl::BdhImpl(const BdhConfig& config) : config_(config) {
  const std::int64_t width = config.n_embd;
  TORCH_CHECK(
      config.n_layer >= 1 && width >= 1 && config.n_head >= 1 && config.vocab_size >= 1 &&
          config.mlp_internal_dim_multiplier >= 1,
      "bdh: n_layer, n_embd, n_head, mlp_internal_dim_multiplier and vocab_size must be at least 1, got ",
      config.n_layer, ", ", width, ", ", config.n_head, ", ", config.mlp_internal_dim_multiplier, " and ",
      config.vocab_size);
  TORCH_CHECK(config.mlp_internal_dim_multiplier * width % (2 * config.n_head) == 0,
              "bdh: mlp_internal_dim_multiplier * n_embd is ", config.mlp_internal_dim_multiplier * width,
              ", expected a multiple of 2 * n_head, ", 2 * config.n_head,
              ": each head has an even number of neurons");
  TORCH_CHECK(config.dropout >= 0.0 && config.dropout < 1.0, "bdh: dropout is ", config.dropout,
              ", expected at least 0 and below 1");
  const std::int64_t neurons = config.neurons();
  decoder_ = register_parameter("decoder", normal({config.n_head * neurons, width}));
  encoder_ = register_parameter("encoder", normal({config.n_head, width, neurons}));
  encoder_v_ = register_parameter("encoder_v", normal({config.n_head, width, neurons}));
  lm_head_ = register_parameter("lm_head", normal({width, config.vocab_size}));
  // A module of the reference, for the sake of the name "embed.weight".
  auto embed = std::make_shared<torch::nn::Module>("Embedding");
  embed_ = embed->register_parameter("weight", normal({config.vocab_size, width}));
  register_module("embed", embed);
  frequencies_ = turns_per_position(neurons);
}

torch::Tensor BdhImpl::forward(const torch::Tensor& tokens) {
  TORCH_CHECK(tokens.dim() == 2, "bdh: tokens have ", tokens.dim(),
              " dimensions, expected 2: batch and length");
  const torch::Tensor places = torch::arange(tokens.size(1), frequencies_.options().device(tokens.device()));
  // Whole turns are taken off before the angle is formed: positions are large, fp32 is not exact there.
  const torch::Tensor angle =
      (places.view({-1, 1}) * frequencies_.to(tokens.device())).remainder(1.0) * kTurn;
  const torch::Tensor cosines = angle.cos();
  const torch::Tensor sines = angle.sin();
  torch::Tensor x = layer_norm(torch::embedding(embed_, tokens).unsqueeze(1));
  const Segment one = [this](const std::vector<torch::Tensor>& in) { return layer(in[0], in[1], in[2]); };
  for (std::int64_t i = 0; i < config_.n_layer; ++i) {
    x = config_.gradient_checkpointing ? checkpoint(one, {x, cosines, sines}) : layer(x, cosines, sines);
  }
  return x.squeeze(1).matmul(lm_head_);
}

// x: [batch, 1, length, width]; codes: [batch, heads, length, neurons].
torch::Tensor BdhImpl::layer(const torch::Tensor& x, const torch::Tensor& cosines,
                             const torch::Tensor& sines) {
  const torch::Tensor code = torch::relu(x.matmul(encoder_));
  const torch::Tensor turned = rotate(code, cosines, sines);
  const torch::Tensor seen = turned.matmul(turned.mT()).tril(-1).matmul(x);
  const torch::Tensor answer = torch::relu(layer_norm(seen).matmul(encoder_v_));
  const torch::Tensor both = torch::dropout(code * answer, config_.dropout, is_training());
  const torch::Tensor joined = both.transpose(1, 2).reshape({x.size(0), 1, x.size(2), -1});
  return layer_norm(x + layer_norm(joined.matmul(decoder_)));
}

}  // namespace octavo::train
