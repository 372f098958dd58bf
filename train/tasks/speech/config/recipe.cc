// Defaults that depend on the config: NeMo's recipe for pretrained models, and the settings that recordings
// need.
// SPDX-License-Identifier: MIT
#include "train/config/recipe.h"

#include "train/tasks/speech/config/model_config.h"
#include "train/tasks/speech/config/recording_config.h"
#include "train/tasks/speech/config/recording_settings.h"

#include <octavo/types.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace octavo_train {
namespace {

constexpr const char *kRows = "16", *kWorkers = "8";

std::int64_t warmup_of(const Config& config) {
  const auto& steps = config.settings.training.max_steps;
  const bool given = config.origin("training.max_steps").level != Origin::Level::standard && steps;
  return given ? std::min(recipe::kFineTuningWarmup, *steps / 10) : recipe::kFineTuningWarmup;
}

// Parses a number of the recipe. The decimal separator is a point, regardless of the program's locale.
double number_in(std::string_view text) {
  double value = 0.0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void add_fine_tuning(const Config& config, std::vector<Default>& out) {
  const TrainingSettings& training = config.settings.training;
  if (training.optimizer.algorithm != octavo::parse_algorithm(recipe::kWithFp32).value()) return;
  for (const auto& [path, value] : recipe::kFineTuning) {
    const std::string text(value);
    // The recipe's min_lr does not apply if the user chose a learning rate below it.
    if (path == "training.min_lr" && number_in(text) > training.learning_rate) continue;
    out.push_back({path, text});
  }
  out.push_back({"training.warmup_steps", std::to_string(warmup_of(config))});
  out.push_back({"training.max_steps", "null"});  // the recipe sets num_train_epochs instead
}

}  // namespace

std::vector<Default> speech_recipe(const Config& config) {
  const Settings& settings = config.settings;
  const auto& recordings = settings.own.get<RecordingSettings>();
  const bool trained_before =
      settings.own.get<SpeechKeys>().pretrained && settings.model.name != kFastConformer;
  std::vector<Default> out;
  if (recordings.train_manifest) out.push_back({"data.dataloader_num_workers", kWorkers});
  if (recordings.has_budget()) {
    out.push_back({"training.per_device_train_batch_size", "auto"});
  } else if (trained_before) {
    out.push_back({"training.per_device_train_batch_size", kRows});
  }
  if (trained_before) add_fine_tuning(config, out);
  return out;
}

}  // namespace octavo_train
