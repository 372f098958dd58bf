// What a run carries from step to step besides weights and optimizer states, and how all of it goes into a
// checkpoint and comes back. A folder checkpoint-STEP holds model.safetensors, optimizer.safetensors,
// state.json and config.yaml; docs/guides/train.md describes them for readers in other languages.
// SPDX-License-Identifier: MIT
#pragma once

#include "optimizer.h"
#include "precision.h"
#include "train/data/text_files.h"

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <string>

namespace octavo::train {

struct RunState {
  std::int64_t step = 0;            // optimizer steps done, skipped ones included
  std::uint64_t draws = 0;          // samples taken from the sampler
  std::int64_t samples = 0;         // how many samples the sampler goes through
  std::uint64_t sampler_start = 0;  // the draw at which it began with that number
  std::int64_t tokens = 0;
  std::int64_t skipped = 0, skipped_in_a_row = 0;
  std::int64_t evaluated = -1;  // the step that was evaluated last
  double loss_sum = 0;          // since the last line of metrics
  std::int64_t loss_count = 0;
  std::optional<TextRecord> text;  // what the run is trained on; none: saved by version 0.1
};

// What is saved beside the state. All references must outlive it.
struct RunParts {
  const NamedTensors& parameters;
  StepOptimizer& optimizer;
  LossScaler& scaler;
};

struct SavedCheckpoint {
  std::string path;
  std::int64_t bytes = 0;
  std::string warning;  // what failed beside the checkpoint, such as the link `latest`; else empty
};

// Waits for the device. On an error every earlier checkpoint is as it was.
Result<SavedCheckpoint> save_checkpoint(const std::string& run_folder, const RunState& state,
                                        const RunParts& parts, const std::string& config_yaml);

// An error says which tensors differ and how, and leaves everything as it was. REQUIRES:
// verify_checkpoint(path).
Result<RunState> load_checkpoint(const std::string& path, const RunParts& parts);

// state.json alone: what has to be known before there is a model.
Result<RunState> read_state(const std::string& path);

// Only the weights.
Status load_weights(const std::string& path, const NamedTensors& parameters);

}  // namespace octavo::train
