// Small speech models and clips for tests.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/speech/plain_transducer.h"
#include "train/tasks/speech/model/speech_model.h"

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo_train {

// Returns the settings of parakeet_tiny.safetensors' model, which has no dropout.
inline SpeechModelSettings tiny_model() {
  SpeechModelSettings out;
  out.mel_bands = 32;
  out.subsampling_channels = 16;
  out.encoder_layers = 2;
  out.width = 64;
  out.heads = 4;
  out.feed_forward = 256;
  out.vocabulary = 32;
  out.predictor_width = out.joint_width = 48;
  out.dropout = out.attention_dropout = out.input_dropout = out.predictor_dropout = out.joint_dropout = 0;
  out.omega = 0;
  out.reduction = "mean_volume";
  return out;
}

inline SpeechModelSettings with_dropout(SpeechModelSettings settings) {
  settings.dropout = settings.input_dropout = settings.predictor_dropout = settings.joint_dropout = 0.25;
  settings.attention_dropout = 0.25;
  return settings;
}

// Clips with their lengths on the device and on the host.
struct Clips {
  torch::Tensor features, targets;
  std::vector<std::int64_t> frames, labels;

  [[nodiscard]] torch::Tensor lengths() const {
    return torch::tensor(frames, torch::kInt64).to(features.device());
  }
  [[nodiscard]] SpeechClips view() const { return {features, lengths(), targets, frames, labels}; }
};

// Returns clips of random features and random targets, drawn with torch's current seed.
inline Clips random_clips(std::vector<std::int64_t> frames, std::vector<std::int64_t> labels,
                          std::int64_t bands = 32, std::int64_t vocabulary = 32) {
  const auto most = [](const auto& all) { return *std::max_element(all.begin(), all.end()); };
  const auto batch = static_cast<std::int64_t>(frames.size());
  return {torch::randn({batch, most(frames), bands}),
          torch::randint(vocabulary, {batch, most(labels)}, torch::kInt64), std::move(frames),
          std::move(labels)};
}

inline DropoutKey pass_of(const std::vector<std::int64_t>& samples,
                          const torch::Device& device = torch::kCPU) {
  return {7, 3, torch::tensor(samples, torch::kInt64).to(device)};
}

// Returns the model's logits for all cells, [batch, T, U + 1, outputs], without the joint's dropout.
inline torch::Tensor logits_of(SpeechModelImpl& model, const Encoded& encoded, const torch::Tensor& targets,
                               const DropoutKey& pass) {
  return model.joint(model.project_frames(encoded.frames).unsqueeze(2),
                     model.predictions(targets, pass).unsqueeze(1));
}

// Returns the clips' losses, computed by the plain recursion in fp64.
inline torch::Tensor plain_losses(SpeechModelImpl& model, const Clips& clips, const torch::Tensor& logits) {
  std::vector<torch::Tensor> losses;
  for (std::size_t i = 0; i < clips.frames.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    std::vector<std::int64_t> labels;
    for (std::int64_t k = 0; k < clips.labels[i]; ++k)
      labels.push_back(clips.targets[row][k].item<std::int64_t>());
    const torch::Tensor cells =
        logits[row].narrow(0, 0, (clips.frames[i] + 7) / 8).narrow(1, 0, clips.labels[i] + 1);
    losses.push_back(plain_transducer(cells, labels, model.durations(), model.settings().sigma));
  }
  return torch::stack(losses);
}

}  // namespace octavo_train
