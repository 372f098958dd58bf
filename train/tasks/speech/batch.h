// Batches of clips: made on the host, checked there, and masked on the device.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/task.h"
#include "train/tasks/speech/augment.h"
#include "train/tasks/speech/generator.h"
#include "train/tasks/speech/model.h"

#include <cstdint>
#include <span>
#include <vector>

namespace octavo::train {

// What the tensors of a batch are called: features [clips, T, bands] in fp32, feature_lengths [clips],
// targets [clips, U] and target_lengths [clips] in int64. Both lengths are on the host too.
struct ClipTensors {
  static constexpr const char *features = "features", *feature_lengths = "feature_lengths",
                              *targets = "targets", *target_lengths = "target_lengths";
};

// A batch of these clips, padded with zeros.
Batch make_batch(const GeneratorSettings& settings, const std::vector<ClipPlan>& plans, std::int64_t bands);

// Throws c10::Error that names the clip where a length is beyond its tensor, a clip has no frame, or a label
// is no token of the vocabulary. REQUIRES: on the host.
void check_batch(const Batch& batch, std::int64_t vocabulary);

// The same batch as the model takes it. It refers to the batch.
SpeechClips clips_of(const Batch& batch);

// The features [clips, T, bands] with zeros in the masks; `masks` has those of each clip, as many for all.
torch::Tensor masked(const torch::Tensor& features, std::span<const Masks> masks);

}  // namespace octavo::train
