// SPDX-License-Identifier: MIT
#include "train/run/run.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/resume.h"

#include <fmt/format.h>

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
    return fmt::format("max_steps={}{}", 2 * (reached - first_step),
                       first_step > 0 ? fmt::format(" (counted from step {})", first_step) : "");
  const double share = static_cast<double>(reached) / static_cast<double>(last_step);
  const double epochs = training.num_train_epochs.value_or(1);
  return "num_train_epochs=" + epochs_text(std::ceil(2 * epochs * share));
}

// Returns the change of settings that leaves no step to do after a finished run; empty: nothing was changed.
// `end`: the last stage that the settings give.
std::string useless_change(const Settings& settings, const std::string& checkpoint, const RunState& state,
                           const Stage& end) {
  const DataSettings& data = settings.data;
  const std::string key = data.stages ? "data.stages" : "data.max_samples";
  const std::int64_t asked = data.stages ? data.stages->back() : data.max_samples;
  const std::string got =
      asked == end.samples ? std::to_string(asked) : fmt::format("{} ({} samples)", asked, end.samples);
  if (end.samples < state.samples)
    return fmt::format("{}: got {}, but the run has trained on {} samples", key, got, state.samples);
  if (end.samples > state.samples)
    return fmt::format("{}: got {} after {} samples, but all steps end at step {}", key, got, state.samples,
                       end.last_step);
  const auto saved = saved_settings(checkpoint);
  if (saved.ok() && (saved->data.max_samples != data.max_samples || saved->data.stages != data.stages))
    return fmt::format("{}: got {}, but this adds no samples: the run has trained on all of them", key, got);
  if (state.step <= end.last_step) return {};
  const TrainingSettings& training = settings.training;
  return fmt::format("training.{}: got {}, which ends at step {}",
                     training.max_steps ? "max_steps" : "num_train_epochs",
                     training.max_steps ? std::to_string(*training.max_steps)
                                        : epochs_text(training.num_train_epochs.value_or(1)),
                     end.last_step);
}

}  // namespace

const Stage& stage_after(const std::vector<Stage>& stages, std::int64_t step) {
  for (const Stage& each : stages) {
    if (step < each.last_step) return each;
  }
  return stages.back();
}

std::string RunConfig::stage_text(std::int64_t step) const {
  const Stage& now = stage_after(step);
  return fmt::format("stage {} of {}: {} samples, to step {}", &now - stages.data() + 1, stages.size(),
                     now.samples, now.last_step);
}

std::string RunConfig::step_text(std::int64_t step) const { return fmt::format("step {}/{}", step, steps()); }

Result<RunSteps> plan_steps(const Settings& settings, const TaskData& data, int ranks,
                            const std::string& checkpoint) {
  const TrainingSettings& training = settings.training;
  const auto stages_from = [&](std::int64_t first_step) {
    return plan_stages(settings.data, training, data.samples, data.batches.get(), ranks, first_step);
  };
  const bool by_steps = training.max_steps && !settings.data.stages;
  RunSteps out;
  RunState state;
  if (!checkpoint.empty()) {
    ASSIGN_OR_RETURN(state, saved_state(checkpoint));
    if (by_steps) out.first_step = state.first_step;
  }
  ASSIGN_OR_RETURN(out.stages, stages_from(out.first_step));
  const Stage& end = out.stages.back();
  if (checkpoint.empty() || state.step < end.last_step) return out;
  if (by_steps && end.samples > state.samples) {
    out.first_step = state.step;
    ASSIGN_OR_RETURN(out.stages, stages_from(out.first_step));
    return out;
  }
  const std::string change = useless_change(settings, checkpoint, state, end);
  if (change.empty()) return out;
  return invalid_error(
      "{}. The run is complete, and no step is left: {} is at step {}. To train it further: {}", change,
      checkpoint, state.step, to_train_further(training, state.step, end.last_step, out.first_step));
}

std::string complete_text(const Settings& settings, const std::string& checkpoint, std::int64_t step,
                          std::int64_t first_step) {
  return fmt::format(
      "nothing to do: the run is complete, {} is at step {} of {}. To train it further: {}{}. For a run of "
      "its own: output_dir={}. To look at it: octavo report {}",
      checkpoint, step, step, to_train_further(settings.training, step, step, first_step),
      settings.data.stages || settings.data.max_samples < 0 ? "" : ", or a larger data.max_samples",
      free_folder(settings), settings.output_dir);
}

}  // namespace octavo_train
