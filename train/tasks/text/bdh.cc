// SPDX-License-Identifier: MIT
#include "train/tasks/text/bdh.h"

#include "train/nn/recompute.h"
#include "train/nn/weight_matmul.h"
#include "train/tasks/text/settings.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

constexpr double kTheta = 65536.0;
constexpr double kTurn = 2.0 * 3.14159265358979323846;

torch::Tensor normal(at::IntArrayRef shape) { return torch::empty(shape).normal_(0.0, 0.02); }

torch::Tensor layer_norm(const torch::Tensor& x) {
  namespace F = torch::nn::functional;
  return F::layer_norm(x, F::LayerNormFuncOptions({x.size(-1)}));
}

// Returns the frequencies of RoPE, which rotates neurons in pairs, each pair with its own frequency: from one
// turn per 2 pi positions down to one turn per almost theta * 2 pi positions.
torch::Tensor turns_per_position(std::int64_t neurons) {
  const torch::Tensor pair = torch::arange(neurons / 2, torch::kFloat32) * 2;
  return 1.0 / torch::pow(kTheta, pair / static_cast<double>(neurons)) / kTurn;
}

// Rotates the pairs of neurons of v [.., length, neurons] by angles [length, neurons / 2], given by their
// cosines and sines.
torch::Tensor turned_by(const torch::Tensor& v, const torch::Tensor& cosines, const torch::Tensor& sines) {
  using torch::indexing::None;
  using torch::indexing::Slice;
  const auto half = [](const torch::Tensor& t, int first) { return t.index({"...", Slice(first, None, 2)}); };
  torch::Tensor out = v * cosines.repeat_interleave(2, -1);
  half(out, 0).addcmul_(half(v, 1), sines, -1);
  half(out, 1).addcmul_(half(v, 0), sines);
  return out;
}

// Returns the dot products of rotated codes [.., length, neurons] with each other, [.., length, length]. The
// function has its own backward pass because autograd does not know two facts. A rotation can be undone, so
// only its result is saved. Both factors are the same tensor, so one matmul computes the gradient instead of
// two.
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

class RecomputedText : public GenerationState {
 public:
  explicit RecomputedText(TextModel& model) : model_(model) {}

  torch::Tensor append(const torch::Tensor& tokens) override {
    tokens_ = tokens_.defined() ? torch::cat({tokens_, tokens}) : tokens;
    return model_.forward(tokens_.unsqueeze(0)).index({0, -1});
  }

 private:
  TextModel& model_;
  torch::Tensor tokens_;
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
  // The embedding is a module, as in the reference implementation, so that its name is "embed.weight".
  auto embed = std::make_shared<torch::nn::Module>("Embedding");
  embed_ = embed->register_parameter("weight", normal({config.vocab_size, width}));
  register_module("embed", embed);
  frequencies_ = turns_per_position(neurons);
}

torch::Tensor BdhImpl::logits(const torch::Tensor& tokens, const DropoutKey& pass) {
  TORCH_CHECK(tokens.dim() == 2, "bdh: tokens have ", tokens.dim(),
              " dimensions, expected 2: batch and length");
  look_up_angles(tokens.size(1), tokens.device());
  torch::Tensor x = layer_norm(torch::embedding(embed_, tokens));
  for (std::int64_t i = 0; i < config_.n_layer; ++i) {
    const auto one = [this, pass, i](const std::vector<torch::Tensor>& in) {
      return layer(in[0], {in[1], in[2]}, pass, i);
    };
    x = config_.gradient_checkpointing
            ? recompute(one, {x, angles_.cosines, angles_.sines}, {}, SegmentWeights::shared)
            : layer(x, angles_, pass, i);
  }
  return weight_matmul(x, lm_head_);
}

BdhImpl::Angles BdhImpl::angles(std::int64_t first, std::int64_t length, const torch::Device& device) const {
  const torch::NoGradGuard no_grad;
  const torch::Tensor places = torch::arange(first, first + length, frequencies_.options()).view({-1, 1});
  // Full turns are subtracted before the angle is computed, because fp32 is not exact for large positions.
  const torch::Tensor angle = (places * frequencies_).remainder(1.0) * kTurn;
  return {angle.cos().to(device), angle.sin().to(device)};
}

// Keeps the angles, which are the same at every step, and recomputes them if `length` or `device` changes.
void BdhImpl::look_up_angles(std::int64_t length, const torch::Device& device) {
  const torch::Tensor& there = angles_.cosines;
  if (there.defined() && there.size(0) == length && there.device() == device) return;
  angles_ = angles(0, length, device);
}

// Returns x with a first dimension of heads. Heads are the first dimension everywhere, so that each weight
// multiplies the complete batch in one matmul, and no tensor as large as a code [heads, batch * length,
// neurons] is copied to change its order.
torch::Tensor BdhImpl::for_heads(const torch::Tensor& x) const {
  return x.unsqueeze(0).expand({config_.n_head, x.size(0), x.size(1), x.size(2)});
}

// Returns the codes [heads, batch * length, neurons] of x [batch, length, width].
torch::Tensor BdhImpl::encode(const torch::Tensor& x) const {
  return weight_matmul_to_groups(x.reshape({x.size(0) * x.size(1), x.size(2)}), encoder_).relu_();
}

// Returns the neurons' answers to `seen`, the attention output of each head and token, [.., width] in the
// codes' order.
torch::Tensor BdhImpl::answer(const torch::Tensor& code, const torch::Tensor& seen) const {
  return code *
         grouped_weight_matmul(layer_norm(seen).view({code.size(0), code.size(1), seen.size(-1)}), encoder_v_)
             .relu_();
}

// Applies dropout to the answers [heads, batch * length, neurons], as [heads, batch, elements of a text], so
// that a text has the same mask in any batch.
torch::Tensor BdhImpl::dropped(const torch::Tensor& x, const torch::Tensor& answers, const DropoutKey& pass,
                               std::int64_t layer) const {
  if (!is_training() || config_.dropout == 0.0) return answers;
  const torch::Tensor texts = answers.view({answers.size(0), x.size(0), x.size(1) * answers.size(2)});
  return dropout(texts, config_.dropout, true, pass, static_cast<std::uint32_t>(layer), 1)
      .view(answers.sizes());
}

torch::Tensor BdhImpl::merge(const torch::Tensor& x, const torch::Tensor& answers) const {
  const torch::Tensor joined =
      grouped_weight_matmul_sum(answers, decoder_.view({config_.n_head, config_.neurons(), x.size(2)}));
  return layer_norm(x + layer_norm(joined).view(x.sizes()));
}

// Applies one layer to x [batch, length, width].
torch::Tensor BdhImpl::layer(const torch::Tensor& x, const Angles& turn, const DropoutKey& pass,
                             std::int64_t number) const {
  const std::int64_t texts = config_.n_head * x.size(0), length = x.size(1);
  const torch::Tensor code = encode(x);
  const torch::Tensor scores =
      SelfScores::apply(code.view({texts, length, config_.neurons()}), turn.cosines, turn.sines).tril(-1);
  const torch::Tensor seen = scores.bmm(for_heads(x).reshape({texts, length, x.size(2)}));
  torch::Tensor answers = answer(code, seen);
  answers = dropped(x, answers, pass, number);  // frees the previous answers, which are as large as the codes
  return merge(x, answers);
}

// The state of a text during generation. The attention output of a token is the sum over all tokens s before
// it of (q . k_s) x_s, which is q . (sum of k_s x_s^T). Each layer stores only the sum in brackets.
class BdhImpl::Text : public GenerationState {
 public:
  explicit Text(BdhImpl& model) : model_(model), past_(static_cast<std::size_t>(model.config_.n_layer)) {}

  torch::Tensor append(const torch::Tensor& tokens) override {
    const Angles turn = model_.angles(length_, tokens.size(0), tokens.device());
    torch::Tensor x = layer_norm(torch::embedding(model_.embed_, tokens.unsqueeze(0)));
    for (torch::Tensor& past : past_) {
      const torch::Tensor code = model_.encode(x);
      x = model_.merge(x, model_.answer(code, look_back(past, x, code, turn)));
    }
    length_ += tokens.size(0);
    return weight_matmul(x.index({0, -1}), model_.lm_head_);
  }

 private:
  // Returns the attention output of the new tokens, over the past and over each other. Adds the new tokens to
  // the past.
  torch::Tensor look_back(torch::Tensor& past, const torch::Tensor& x, const torch::Tensor& code,
                          const Angles& turn) const {
    // Sums over a complete text are in fp32 or a wider type, also under autocast.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto type = x.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    const torch::Tensor turned = turned_by(code.to(type), turn.cosines.to(type), turn.sines.to(type));
    const torch::Tensor values = model_.for_heads(x.to(type)).squeeze(1);  // [heads, length, width]
    torch::Tensor seen = turned.bmm(turned.mT()).tril(-1).bmm(values);
    if (past.defined()) {
      seen.baddbmm_(turned, past);
      past.baddbmm_(turned.mT(), values);
    } else {
      past = turned.mT().bmm(values);
    }
    return seen.to(code.scalar_type());
  }

  BdhImpl& model_;
  std::vector<torch::Tensor> past_;  // of each layer: [heads, neurons, width]
  std::int64_t length_ = 0;
};

std::unique_ptr<GenerationState> BdhImpl::begin_text() { return std::make_unique<Text>(*this); }

std::unique_ptr<GenerationState> TextModel::begin_text() { return std::make_unique<RecomputedText>(*this); }

std::shared_ptr<TextModel> make_text_model(const Settings& settings) {
  TORCH_CHECK(settings.model.name == "bdh", "there is no model of text of the name ", settings.model.name);
  const auto& bdh = settings.task_settings.get<BdhSettings>();
  return std::make_shared<BdhImpl>(BdhConfig{bdh.n_layer, bdh.n_embd, bdh.n_head,
                                             bdh.mlp_internal_dim_multiplier, kByteVocabulary, bdh.dropout,
                                             bdh.gradient_checkpointing});
}

}  // namespace octavo_train
