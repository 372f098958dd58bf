// SPDX-License-Identifier: MIT
#include "train/run/resume_steps.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/resume.h"

#include <algorithm>
#include <cmath>

namespace octavo_train {
namespace {

std::string epochs_text(double value) { return decimal_text(value, std::chars_format::general, 6); }

// Returns the key=value that doubles the number of steps.
std::string to_train_further(const TrainingSettings& training, std::int64_t step, std::int64_t last_step,
                             std::int64_t first_step) {
  const std::int64_t reached = std::max(step, last_step);
  if (training.max_steps)
    return "max_steps=" + std::to_string(2 * (reached - first_step)) +
           (first_step > 0 ? " (counted from step " + std::to_string(first_step) + ")" : "");
  const double share = static_cast<double>(reached) / static_cast<double>(last_step);
  const double epochs = training.num_train_epochs.value_or(1);
  return "num_train_epochs=" + epochs_text(std::ceil(2 * epochs * share));
}

// A finished run: its checkpoint, and the number of steps that the settings give.
struct Finished {
  const Settings& settings;
  const std::string& checkpoint;
  const RunState& state;
  const RunSteps& steps;
};

std::string samples_text(const Finished& run, const std::string& asked) {
  const std::int64_t samples = run.steps.stages.back().samples;
  return asked == std::to_string(samples) ? asked : asked + " (" + std::to_string(samples) + " samples)";
}

// Returns the change of settings that leaves no step to do; empty: nothing was changed.
std::string useless_change(const Finished& run) {
  const DataSettings& data = run.settings.data;
  const std::int64_t samples = run.steps.stages.back().samples, last = run.steps.stages.back().last_step;
  const std::string key = data.stages ? "data.stages" : "data.max_samples";
  const std::string got =
      samples_text(run, std::to_string(data.stages ? data.stages->back() : data.max_samples));
  const std::string trained = std::to_string(run.state.samples) + " samples";
  if (samples < run.state.samples) return key + ": got " + got + ", but the run has trained on " + trained;
  if (samples > run.state.samples)
    return key + ": got " + got + " after " + trained + ", but all steps end at step " + std::to_string(last);
  const auto saved = saved_settings(run.checkpoint);
  if (saved.ok() && (saved->data.max_samples != data.max_samples || saved->data.stages != data.stages))
    return key + ": got " + got + ", but this adds no samples: the run has trained on all of them";
  if (run.state.step <= last) return {};
  const TrainingSettings& training = run.settings.training;
  return (training.max_steps
              ? "training.max_steps: got " + std::to_string(*training.max_steps)
              : "training.num_train_epochs: got " + epochs_text(training.num_train_epochs.value_or(1))) +
         ", which ends at step " + std::to_string(last);
}

}  // namespace

Result<RunSteps> plan_steps(const Settings& settings, const Task& task, int ranks,
                            const std::string& checkpoint) {
  const DataSettings& data = settings.data;
  const TrainingSettings& training = settings.training;
  const auto stages_from = [&](std::int64_t first_step) {
    return plan_stages(data, training, task.samples(), task.batches(), ranks, first_step);
  };
  const bool by_steps = training.max_steps && !data.stages;
  RunSteps out;
  RunState state;
  if (!checkpoint.empty()) {
    ASSIGN_OR_RETURN(auto read, saved_state(checkpoint));
    state = read;
    if (by_steps) out.first_step = state.first_step;
  }
  auto stages = stages_from(out.first_step);
  if (!stages.ok()) return stages.status();
  out.stages = std::move(*stages);
  if (checkpoint.empty() || state.step < out.stages.back().last_step) return out;
  if (by_steps && out.stages.back().samples > state.samples) {
    out.first_step = state.step;
    stages = stages_from(out.first_step);
    if (!stages.ok()) return stages.status();
    out.stages = std::move(*stages);
    return out;
  }
  const std::string change = useless_change({settings, checkpoint, state, out});
  if (change.empty()) return out;
  return Status::invalid(change + ". The run is complete, and no step is left: " + checkpoint +
                         " is at step " + std::to_string(state.step) + ". To train it further: " +
                         to_train_further(training, state.step, out.stages.back().last_step, out.first_step));
}

std::string complete_text(const Settings& settings, const std::string& checkpoint, std::int64_t step,
                          std::int64_t first_step) {
  return "nothing to do: the run is complete, " + checkpoint + " is at step " + std::to_string(step) +
         " of " + std::to_string(step) +
         ". To train it further: " + to_train_further(settings.training, step, step, first_step) +
         (settings.data.stages || settings.data.max_samples < 0 ? "" : ", or a larger data.max_samples") +
         ". For a run of its own: output_dir=" + free_folder(settings) + ". To look at it: octavo report " +
         settings.output_dir;
}

}  // namespace octavo_train
