// SPDX-License-Identifier: MIT
#include "models/bdh.h"

#include "checkpointing.h"

#include <torch/csrc/autograd/custom_function.h>
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
  const torch::Tensor pair = torch::arange(neurons / 2, torch::kFloat32) * 2;
  return 1.0 / torch::pow(kTheta, pair / static_cast<double>(neurons)) / kTurn;
}

// Turns the pairs of neurons of v [.., length, neurons] by angles [length, neurons / 2] of which cosines and
// sines are given.
torch::Tensor turned_by(const torch::Tensor& v, const torch::Tensor& cosines, const torch::Tensor& sines) {
  using torch::indexing::None;
  using torch::indexing::Slice;
  const auto half = [](const torch::Tensor& t, int first) { return t.index({"...", Slice(first, None, 2)}); };
  torch::Tensor out = v * cosines.repeat_interleave(2, -1);
  half(out, 0).addcmul_(half(v, 1), sines, -1);
  half(out, 1).addcmul_(half(v, 0), sines);
  return out;
}

// The products of turned codes [.., length, neurons] with each other, [.., length, length]. A function of its
// own, because autograd does not know that turning is undone by turning back, so that only the result need be
// kept, nor that both factors are one: its backward pass would take twice the multiplications.
struct SelfScores : torch::autograd::Function<SelfScores> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static torch::Tensor forward(Context* context, const torch::Tensor& code, const torch::Tensor& cosines,
                               const torch::Tensor& sines) {
    const torch::Tensor c = cosines.to(code.dtype()), s = sines.to(code.dtype());
    const torch::Tensor turned = turned_by(code, c, s);
    context->save_for_backward({turned, c, s});
    return turned.bmm(turned.mT());
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    const Tensors saved = context->get_saved_variables();
    const torch::Tensor of_turned = (grads[0] + grads[0].mT()).bmm(saved[0]);
    return {turned_by(of_turned, saved[1], -saved[2]), torch::Tensor(), torch::Tensor()};
  }
};

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
  look_up_angles(tokens.size(1), tokens.device());
  torch::Tensor x = layer_norm(torch::embedding(embed_, tokens));
  const Segment one = [this](const std::vector<torch::Tensor>& in) { return layer(in[0], in[1], in[2]); };
  for (std::int64_t i = 0; i < config_.n_layer; ++i) {
    x = config_.gradient_checkpointing ? checkpoint(one, {x, cosines_, sines_}) : layer(x, cosines_, sines_);
  }
  return x.matmul(lm_head_);
}

// The same at every step but for the last batch of an evaluation, so they are kept.
void BdhImpl::look_up_angles(std::int64_t length, const torch::Device& device) {
  if (cosines_.defined() && cosines_.size(0) == length && cosines_.device() == device) return;
  const torch::NoGradGuard no_grad;
  const torch::Tensor places = torch::arange(length, frequencies_.options()).view({-1, 1});
  // Whole turns are taken off before the angle is formed: positions are large, fp32 is not exact there.
  const torch::Tensor angle = (places * frequencies_).remainder(1.0) * kTurn;
  cosines_ = angle.cos().to(device);
  sines_ = angle.sin().to(device);
}

// x: [batch, length, width]. Heads come first in everything that has them: so weights meet whole batches, and
// nothing as large as a code [heads, batch * length, neurons] is ever copied for the sake of its order.
torch::Tensor BdhImpl::layer(const torch::Tensor& x, const torch::Tensor& cosines,
                             const torch::Tensor& sines) {
  const std::int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  const std::int64_t heads = config_.n_head, neurons = config_.neurons();
  const torch::Tensor for_heads = x.unsqueeze(0).expand({heads, batch, length, width});
  const torch::Tensor code = for_heads.reshape({heads, batch * length, width}).bmm(encoder_).relu_();
  const torch::Tensor scores =
      SelfScores::apply(code.view({heads * batch, length, neurons}), cosines, sines).tril(-1);
  const torch::Tensor seen = scores.bmm(for_heads.reshape({heads * batch, length, width}));
  const torch::Tensor answer = layer_norm(seen).view({heads, batch * length, width}).bmm(encoder_v_).relu_();
  const torch::Tensor both = torch::dropout(code * answer, config_.dropout, is_training());
  const torch::Tensor joined = both.bmm(decoder_.view({heads, neurons, width})).sum(0);
  return layer_norm(x + layer_norm(joined).view({batch, length, width}));
}

}  // namespace octavo::train
