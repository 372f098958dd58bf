// Builds and checks batches of clips on the host, and masks their features on the device.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/task.h"
#include "train/tasks/speech/data/clip_reader.h"
#include "train/tasks/speech/data/generator.h"
#include "train/tasks/speech/features/spec_augment.h"
#include "train/tasks/speech/model/speech_model.h"

#include <cstdint>
#include <span>
#include <vector>

namespace octavo_train {

// The names of a batch's tensors: features [clips, T, bands] in fp32; feature_lengths [clips],
// targets [clips, U] and target_lengths [clips] in int64. Both lengths are also on the host. A batch of
// recordings has audio [clips, samples] in fp32 instead of features, and audio_lengths [clips] on the host.
struct ClipTensors {
  static constexpr const char *features = "features", *feature_lengths = "feature_lengths", *audio = "audio",
                              *audio_lengths = "audio_lengths", *targets = "targets",
                              *target_lengths = "target_lengths";
};

// Returns a batch of generated clips, padded with zeros.
Batch make_batch(const GeneratorSettings& settings, const std::vector<ClipSpec>& specs, std::int64_t bands);

// Returns a batch of recordings, padded with zeros. `clips` may be empty. REQUIRES: either all clips have
// features, or none has.
Batch make_batch(const FeatureSettings& settings, std::span<const LoadedClip> clips);

// Throws c10::Error that names the clip if a length is larger than its tensor, a clip has no frame, or a
// label is not a token of the vocabulary. REQUIRES: the batch is on the host.
void check_batch(const Batch& batch, std::int64_t vocabulary);

// Returns the batch in the form that the model takes. The result refers to the batch, which must outlive it.
// The second function takes features that were computed from the batch's audio.
SpeechClips clips_of(const Batch& batch);
SpeechClips clips_of(const Batch& batch, torch::Tensor features);
[[nodiscard]] bool has_audio(const Batch& batch);
[[nodiscard]] std::span<const std::int64_t> audio_lengths(const Batch& batch);

// Returns the features [clips, T, bands] with the frames of padding that NeMo adds in training, because
// BatchNorm counts them. `longest` is the length of the longest clip in frames.
torch::Tensor padded_for_training(const torch::Tensor& features, std::int64_t longest,
                                  const FeatureSettings& settings);

// Returns the features [clips, T, bands] with zeros in the masks. `masks` has one element per clip.
// REQUIRES: all clips have the same number of masks.
torch::Tensor masked(const torch::Tensor& features, std::span<const Masks> masks);

}  // namespace octavo_train
