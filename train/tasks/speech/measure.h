// Measures the time and the memory of a training step of the speech model, by part. The model, the optimizer
// and the precision are those of a run; weights, recordings and labels are random.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/tasks/speech/measured.h"
#include "train/tasks/speech/model.h"

#include <torch/types.h>

#include <cstdint>

namespace octavo_train {

// A micro-batch: clips of equal length, all with the same number of labels. A step has
// training.gradient_accumulation_steps micro-batches.
struct SpeechLoad {
  std::int64_t clips = 0, frames = 0, tokens = 0;
  std::int64_t steps = 0;  // timed steps, after a few untimed ones
};

// Runs and measures training steps. REQUIRES: a model with a transducer head or a CTC head, placed on the
// device with place_model() as the settings require. Throws c10::Error, such as c10::OutOfMemoryError.
SpeechMeasure measure_step(SpeechModelImpl& model, const SpeechLoad& load, const TrainingSettings& training,
                           const torch::Device& device);

}  // namespace octavo_train
