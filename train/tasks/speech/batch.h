// Batches of clips: made on the host, checked there, and masked on the device.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/task.h"
#include "train/tasks/speech/augment.h"
#include "train/tasks/speech/clip_reader.h"
#include "train/tasks/speech/generator.h"
#include "train/tasks/speech/model.h"

#include <cstdint>
#include <span>
#include <vector>

namespace octavo::train {

// What the tensors of a batch are called: features [clips, T, bands] in fp32, feature_lengths [clips],
// targets [clips, U] and target_lengths [clips] in int64. Both lengths are on the host too. A batch of
// recordings has audio [clips, samples] in fp32 instead of features, and audio_lengths [clips] on the host.
struct ClipTensors {
  static constexpr const char *features = "features", *feature_lengths = "feature_lengths", *audio = "audio",
                              *audio_lengths = "audio_lengths", *targets = "targets",
                              *target_lengths = "target_lengths";
};

// A batch of these clips, padded with zeros.
Batch make_batch(const GeneratorSettings& settings, const std::vector<ClipPlan>& plans, std::int64_t bands);

// The same of recordings; there may be none. All have features, or none has.
Batch make_batch(const FeatureSettings& settings, std::span<const ReadClip> clips);

// Throws c10::Error that names the clip where a length is beyond its tensor, a clip has no frame, or a label
// is no token of the vocabulary. REQUIRES: on the host.
void check_batch(const Batch& batch, std::int64_t vocabulary);

// The same batch as the model takes it. It refers to the batch. The second: with features that were made of
// its audio.
SpeechClips clips_of(const Batch& batch);
SpeechClips clips_of(const Batch& batch, torch::Tensor features);
[[nodiscard]] bool has_audio(const Batch& batch);
[[nodiscard]] std::span<const std::int64_t> audio_lengths(const Batch& batch);

// Returns the features [clips, T, bands] with the frames of padding that NeMo's have in training: BatchNorm
// counts them. `longest` is the length of the longest clip in frames.
torch::Tensor padded_for_training(const torch::Tensor& features, std::int64_t longest,
                                  const FeatureSettings& settings);

// The features [clips, T, bands] with zeros in the masks; `masks` has those of each clip, as many for all.
torch::Tensor masked(const torch::Tensor& features, std::span<const Masks> masks);

}  // namespace octavo::train
