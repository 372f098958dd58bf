// A training step of the speech model, measured: where its time and its memory go. The model, the optimizer
// and the precision are those of a run; weights, recordings and labels are random.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/optim/optimizer.h"
#include "train/tasks/speech/measured.h"
#include "train/tasks/speech/model.h"

#include <torch/types.h>

#include <cstdint>

namespace octavo::train {

// A micro-batch: clips of one length with equally many labels. A step has as many of them as
// training.gradient_accumulation_steps says.
struct SpeechLoad {
  std::int64_t clips = 0, frames = 0, tokens = 0;
  std::int64_t steps = 0;  // that are timed, after some that are not
};

// REQUIRES: a model with a transducer's or a CTC head, placed as `plan` says (place_model). Throws
// c10::Error, of which c10::OutOfMemoryError is one.
SpeechMeasure measure_step(SpeechModelImpl& model, const SpeechLoad& load, const OptimizerPlan& plan,
                           const TrainingSettings& training, const torch::Device& device);

}  // namespace octavo::train
