// Saves and loads checkpoints. A folder checkpoint-STEP holds a file NAME.safetensors for each part that has
// tensors (model, optimizer), state.json with everything else, config.yaml, evaluation.json if the step was
// evaluated, and the task's files. docs/guides/runs.md describes the files for readers in other languages.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/evaluation_file.h"
#include "train/nn/named_tensors.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

// A part of a run that is saved in checkpoints. It has a name in the checkpoint: its scalars are an object of
// that name in state.json, and its tensors are a file NAME.safetensors. Each part is defined beside what it
// saves: the model's below, those of the loss scale, FP8 and the optimizer in train/optim/. A new part is
// added to TrainingState (train/run/training_state.cc).
class Checkpointable {
 public:
  Checkpointable() = default;
  virtual ~Checkpointable() = default;
  Checkpointable(const Checkpointable&) = delete;
  Checkpointable& operator=(const Checkpointable&) = delete;

  // Returns the part's name in checkpoints, a single word that must never change.
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Adds the part's state to both arguments. Tensors may be on any device.
  virtual void save(NamedTensors& tensors, nlohmann::ordered_json& scalars) const = 0;

  // Checks everything that was saved and changes nothing yet. The returned function applies it and cannot
  // fail, so a checkpoint is loaded completely or not at all. The tensors are views of a file that stay valid
  // until the function returns. May throw nlohmann::json::exception.
  using Commit = std::function<void()>;
  virtual Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& scalars) = 0;
  // Returns true if older checkpoints may lack this part. For such a checkpoint load() is not called.
  [[nodiscard]] virtual bool is_optional() const { return false; }
};

inline constexpr std::string_view kModelComponent = "model", kOptimizerComponent = "optimizer";
// Advice for messages about tensors of another kind; see train/optim/convert_states.h.
inline constexpr const char* kConvertAdvice = "; to convert them: --resume convert_states=true";

// Parameters and buffers, such as the statistics of a BatchNorm.
class ModelComponent : public Checkpointable {
 public:
  explicit ModelComponent(NamedTensors tensors) : tensors_(std::move(tensors)) {}

  [[nodiscard]] std::string_view name() const override { return kModelComponent; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& scalars) const override;
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& scalars) override;

 private:
  NamedTensors tensors_;
};

// The counters in state.json: the state that a run carries from step to step besides its components.
struct RunState {
  std::int64_t step = 0;            // optimizer steps done, including skipped ones
  std::uint64_t position = 0;       // the position at which the next batch begins (train/data/order.h)
  std::int64_t samples = 0;         // number of samples in the current order
  std::uint64_t sampler_start = 0;  // the position at which the current order began
  std::int64_t units = 0;           // units of throughput, see Unit in train/task.h
  std::int64_t skipped = 0, skipped_in_a_row = 0;
  std::int64_t left_out = 0;         // samples that could not be read
  std::int64_t passes_left_out = 0;  // micro-batches in which no sample could be read
  std::int64_t evaluated = -1;       // the last evaluated step
  double loss_sum = 0;               // since the last line of metrics
  std::int64_t loss_count = 0;
  // Above 0 if the run has several ranks or was resumed from such a run. Otherwise 0: the settings contain
  // these values.
  std::int64_t ranks = 0, batches_per_step = 0;
  // The step from which training.max_steps counts. It is above 0 after a finished run was resumed with more
  // samples.
  std::int64_t first_step = 0;
};

// Convert the state to and from members of state.json. from_json() throws nlohmann::json::exception.
void to_json(nlohmann::ordered_json& json, const RunState& state);
void from_json(const nlohmann::ordered_json& json, RunState& state);

struct SavedCheckpoint {
  std::string path;
  std::int64_t bytes = 0;
  std::string warning;  // an error outside the checkpoint, such as a failed link `latest`
};

// The content of a checkpoint for one part.
struct SavedComponent {
  std::string name;
  NamedTensors tensors;  // when loading: views of the file
  nlohmann::ordered_json scalars;
};
// The state of a run as a checkpoint has it.
struct SavedState {
  RunState counters;
  std::vector<SavedComponent> components;
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
