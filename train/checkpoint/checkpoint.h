// Saves and loads checkpoints. A folder checkpoint-STEP holds a file NAME.safetensors for each part that has
// tensors (model, optimizer), state.json with everything else, config.yaml, evaluation.json if the step was
// evaluated, and the task's files. docs/guides/train.md describes the files for readers in other languages.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/component.h"
#include "train/checkpoint/folder/evaluation_file.h"
#include "train/checkpoint/run_state.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

struct SavedCheckpoint {
  std::string path;
  std::int64_t bytes = 0;
  std::string warning;  // an error outside the checkpoint, such as a failed link `latest`
};

// The content of a checkpoint for one part.
struct SavedComponent {
  std::string name;
  NamedTensors tensors;  // when loading: views of the file
  nlohmann::ordered_json numbers;
};
// Returns what the parts save now. All ranks call it, because parts may gather over ranks; rank 0 then has
// the complete parts.
std::vector<SavedComponent> collect_components(std::span<const Checkpointable* const> parts);

// Writes a checkpoint. Waits for the device. `data` identifies the data. `evaluation` is the evaluation of
// this step, if there was one. `kept` holds the task's files (TaskModel::extra_files). After an error
// every earlier checkpoint is unchanged.
Result<SavedCheckpoint> save_checkpoint(const std::string& run_folder, const RunState& state,
                                        const nlohmann::ordered_json& data,
                                        std::span<const SavedComponent> parts, const std::string& config_yaml,
                                        const std::optional<EvaluationRecord>& evaluation = {},
                                        const std::map<std::string, std::string>& kept = {});

// Is called before the parts are loaded, and may change what they will load. An error message begins with the
// problem, because load_checkpoint() puts the path before it.
using BeforeLoad = std::function<Status(std::vector<SavedComponent>&)>;

// Loads a checkpoint into `parts`. An error names what differs, and then nothing has changed. REQUIRES:
// verify_checkpoint(path).
Result<RunState> load_checkpoint(const std::string& path, std::span<Checkpointable* const> parts,
                                 const BeforeLoad& before = {});

// Returns the counters of a checkpoint. It needs no model.
Result<RunState> saved_state(const std::string& path);

// Returns the `data` that save_checkpoint() was given; null if there was none. It needs no model.
Result<nlohmann::ordered_json> saved_data(const std::string& path);

}  // namespace octavo_train
