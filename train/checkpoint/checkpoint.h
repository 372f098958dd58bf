// How a run goes into a checkpoint and comes back. A folder checkpoint-STEP holds a file NAME.safetensors for
// each part that has tensors (model, optimizer), state.json with everything else, config.yaml,
// evaluation.json where the step was evaluated, and the files of the task; docs/guides/train.md describes
// them for readers in other languages.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/component.h"
#include "train/checkpoint/folder/evaluation_file.h"
#include "train/checkpoint/run_state.h"

#include <octavo/status.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

struct SavedCheckpoint {
  std::string path;
  std::int64_t bytes = 0;
  std::string warning;  // what failed beside the checkpoint, such as the link `latest`; else empty
};

// What a checkpoint has of a part.
struct SavedPart {
  std::string name;
  NamedTensors tensors;  // of a checkpoint that is read: views of its file
  nlohmann::ordered_json numbers;
};
// What the parts save now. All ranks call it: parts may gather over ranks, and then rank 0 has them whole.
std::vector<SavedPart> collect_parts(std::span<const Stateful* const> parts);

// Waits for the device. `data`: what identifies the data. `evaluation`: of this step, if there was one.
// `kept`: the task's files (Task::kept_files). On an error every earlier checkpoint is as it was.
Result<SavedCheckpoint> save_checkpoint(const std::string& run_folder, const RunState& state,
                                        const nlohmann::ordered_json& data, std::span<const SavedPart> parts,
                                        const std::string& config_yaml,
                                        const std::optional<EvaluationRecord>& evaluation = {},
                                        const std::map<std::string, std::string>& kept = {});

// May change what the parts will load; an error begins with what is wrong.
using BeforeLoad = std::function<Status(std::vector<SavedPart>&)>;

// An error says what differs and how, and leaves everything as it was. REQUIRES: verify_checkpoint(path).
Result<RunState> load_checkpoint(const std::string& path, std::span<Stateful* const> parts,
                                 const BeforeLoad& before = {});

// Its counters alone: known before there is a model.
Result<RunState> saved_state(const std::string& path);

// What identifies the data, as save_checkpoint() got it: known before there is a model. Null: none.
Result<nlohmann::ordered_json> saved_data(const std::string& path);

}  // namespace octavo::train
