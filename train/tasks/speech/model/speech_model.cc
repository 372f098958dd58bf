// SPDX-License-Identifier: MIT
#include "train/tasks/speech/model/speech_model.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/subsampling.h"
#include "train/nn/transducer.h"
#include "train/nn/weight_matmul.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

namespace octavo_train {
namespace {

constexpr std::uint32_t kJointDropout = 1 << 21;  // dropout's layer number, above those of all predictors

struct Size {
  std::string_view name;
  std::int64_t value;
};

void check(const SpeechModelSettings& s) {
  const std::array<Size, 10> sizes = {{{"mel_bands", s.mel_bands},
                                       {"subsampling_channels", s.subsampling_channels},
                                       {"encoder_layers", s.encoder_layers},
                                       {"width", s.width},
                                       {"heads", s.heads},
                                       {"feed_forward", s.feed_forward},
                                       {"vocabulary", s.vocabulary},
                                       {"predictor_width", s.predictor_width},
                                       {"predictor_layers", s.predictor_layers},
                                       {"joint_width", s.joint_width}}};
  for (const Size& each : sizes)
    TORCH_CHECK(each.value >= 1, "speech model: ", each.name, " is ", each.value, ", expected at least 1");
  TORCH_CHECK(s.width % s.heads == 0 && s.width % 2 == 0, "speech model: width is ", s.width,
              ", expected an even multiple of heads, ", s.heads);
  TORCH_CHECK(s.kernel >= 1 && s.kernel % 2 == 1, "speech model: kernel is ", s.kernel,
              ", expected an odd number");
  for (const double probability :
       {s.dropout, s.attention_dropout, s.input_dropout, s.predictor_dropout, s.joint_dropout})
    TORCH_CHECK(probability >= 0.0 && probability < 1.0, "speech model: a dropout is ", probability,
                ", expected at least 0 and below 1");
  TORCH_CHECK(s.head != SpeechHead::tdt || std::ranges::any_of(s.durations, [](auto d) { return d > 0; }),
              "speech model: TDT has no duration above 0, expected one at least, such as 0, 1, 2, 3, 4");
}

octavo::TransducerReduction reduction_of(const SpeechModelSettings& settings) {
  const auto out = octavo::parse_transducer_reduction(settings.reduction);
  TORCH_CHECK(out.ok(), "speech model: ", out.status().message());
  TORCH_CHECK(*out != octavo::TransducerReduction::none,
              "speech model: reduction is none, expected one number: mean_batch");
  return *out;
}

std::vector<std::int64_t> frames_of(const SpeechClips& clips) {
  std::vector<std::int64_t> out;
  for (const std::int64_t length : clips.feature_lengths_on_host) out.push_back(subsampled(length));
  return out;
}

// Reduces the clips' losses to one number: see TransducerReduction.
torch::Tensor reduced(const torch::Tensor& losses, octavo::TransducerReduction how,
                      std::span<const std::int64_t> labels) {
  const std::int64_t total = std::accumulate(labels.begin(), labels.end(), std::int64_t{0});
  switch (how) {
    case octavo::TransducerReduction::mean_batch:
      return losses.mean();
    case octavo::TransducerReduction::mean_volume:
      return losses.sum() / static_cast<double>(std::max<std::int64_t>(total, 1));
    case octavo::TransducerReduction::mean: {
      std::vector<float> shares;
      for (const std::int64_t count : labels)
        shares.push_back(1.0F / static_cast<float>(std::max<std::int64_t>(count, 1)));
      return (losses * torch::tensor(shares).to(losses.options(), /*non_blocking=*/true)).mean();
    }
    default:
      return losses.sum();
  }
}

}  // namespace

SpeechModelImpl::SpeechModelImpl(const SpeechModelSettings& settings)
    : settings_((check(settings), settings)),
      reduction_(reduction_of(settings)),
      encoder_(register_module("encoder", Encoder(settings))) {
  if (settings.head != SpeechHead::tdt) settings_.durations.clear();
  if (settings.head == SpeechHead::ctc) {
    ctc_head_ = register_module(
        "ctc_head", torch::nn::Conv1d(torch::nn::Conv1dOptions(settings.width, settings_.outputs(), 1)));
    return;
  }
  encoder_projector_ =
      register_module("encoder_projector", torch::nn::Linear(settings.width, settings.joint_width));
  predictor_ = register_module("decoder", Predictor(settings));
  auto joint = std::make_shared<torch::nn::Module>("Joint");
  head_ = joint->register_module("head", torch::nn::Linear(settings.joint_width, settings_.outputs()));
  register_module("joint", joint);
}

void SpeechModelImpl::set_gate(const WeightGate& gate) {
  gate_ = gate;
  encoder_->set_gate(gate);
}

Encoded SpeechModelImpl::encode(const torch::Tensor& features, const torch::Tensor& lengths,
                                const DropoutKey& pass) {
  TORCH_CHECK(features.dim() == 3 && features.size(1) >= 1 && features.size(2) == settings_.mel_bands,
              "speech model: features are ", features.sizes(), ", expected [batch, frames, ",
              settings_.mel_bands, "] with at least one frame");
  return encoder_(features, lengths, pass);
}

torch::Tensor SpeechModelImpl::loss(const SpeechClips& clips, const DropoutKey& pass,
                                    const SpeechObserver& observer) {
  const Encoded encoded = encode(clips.features, clips.feature_lengths, pass);
  if (observer) observer(SpeechPart::encoder, {encoded.frames});
  return loss(encoded, clips, pass, observer);
}

torch::Tensor SpeechModelImpl::loss(const Encoded& encoded, const SpeechClips& clips, const DropoutKey& pass,
                                    const SpeechObserver& observer) {
  const auto batch = static_cast<std::size_t>(clips.features.size(0));
  TORCH_CHECK(clips.feature_lengths_on_host.size() == batch && clips.target_lengths_on_host.size() == batch,
              "speech model: ", clips.feature_lengths_on_host.size(), " and ",
              clips.target_lengths_on_host.size(), " lengths of features and targets, expected ", batch,
              " of each");
  if (gate_) {
    for (const auto& part : named_children()) {
      if (part.key() != "encoder") gate_(*part.value());
    }
  }
  return settings_.head == SpeechHead::ctc ? ctc_loss(encoded, clips, observer)
                                           : transducer_loss(encoded, clips, pass, observer);
}

torch::Tensor SpeechModelImpl::ctc_logits(const torch::Tensor& frames) {
  TORCH_CHECK(!ctc_head_.is_empty(), "speech model: it has no CTC head");
  return apply_linear(frames, ctc_head_->weight, ctc_head_->bias);
}

// Returns the CTC loss. A clip with more labels than its frames can hold has no alignment; its loss counts as
// zero.
torch::Tensor SpeechModelImpl::ctc_loss(const Encoded& encoded, const SpeechClips& clips,
                                        const SpeechObserver& observer) {
  const torch::Tensor logits = ctc_logits(encoded.frames);
  if (observer) observer(SpeechPart::predictor, {logits});
  const NoAutocast no_autocast;
  const std::vector<std::int64_t> frames = frames_of(clips);
  const std::vector<std::int64_t> labels(clips.target_lengths_on_host.begin(),
                                         clips.target_lengths_on_host.end());
  const torch::Tensor scores = torch::log_softmax(logits, 2, accumulation_type(logits)).transpose(0, 1);
  const torch::Tensor losses =
      torch::ctc_loss(scores, clips.targets, frames, labels, blank(), at::Reduction::None,
                      /*zero_infinity=*/true);
  return reduced(losses, reduction_, labels).to(torch::kFloat32);
}

torch::Tensor SpeechModelImpl::project_frames(const torch::Tensor& frames) {
  TORCH_CHECK(!predictor_.is_empty(), "speech model: it has no transducer's head");
  return apply_linear(frames, encoder_projector_->weight, encoder_projector_->bias);
}

torch::Tensor SpeechModelImpl::predictions(const torch::Tensor& targets, const DropoutKey& pass) {
  return predictor_(targets, pass);
}

std::pair<torch::Tensor, PredictorState> SpeechModelImpl::predict(const torch::Tensor& tokens,
                                                                  const PredictorState& state) {
  return predictor_->step(tokens, state);
}

torch::Tensor SpeechModelImpl::joint(const torch::Tensor& f, const torch::Tensor& g) {
  return apply_linear((f + g).relu_(), head_->weight, head_->bias);
}

torch::Tensor SpeechModelImpl::transducer_loss(const Encoded& encoded, const SpeechClips& clips,
                                               const DropoutKey& pass, const SpeechObserver& observer) {
  const bool tdt = settings_.head == SpeechHead::tdt;
  const TransducerOptions options{.blank = blank(),
                                  .durations = settings_.durations,
                                  .sigma = tdt ? settings_.sigma : 0.0,
                                  .omega = tdt ? settings_.omega : 0.0,
                                  .reduction = settings_.reduction};
  const torch::Tensor g = predictor_(clips.targets, pass), f = project_frames(encoded.frames);
  if (observer) observer(SpeechPart::predictor, {f, g});
  return joint_loss(f, g, head_->weight, head_->bias, clips.targets, frames_of(clips),
                    clips.target_lengths_on_host, options,
                    {settings_.joint_dropout, is_training(), pass, kJointDropout});
}

}  // namespace octavo_train
