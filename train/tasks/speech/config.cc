// Declares the config keys of the task `speech`, its checks, and its defaults that depend on the config:
// NeMo's recipe for pretrained models, and the settings that recordings need. Does not use LibTorch.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/config/recipe.h"
#include "train/tasks/entry.h"
#include "train/tasks/speech/config/keys.h"
#include "train/tasks/speech/data/generator.h"

#include <octavo/types.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace octavo_train {
namespace {

constexpr std::string_view kNoFreeze =
    "parts of a model are frozen by training.groups: [{params: \"encoder.*\", freeze: true}]";
constexpr std::string_view kNoInit = "write model.name, which is a name, a hub id or a path";

Codec<double> time_width() {
  Codec<double> codec = real({.low = 0, .high = static_cast<double>(kMaxSize)});
  codec.expected = "a number from 0 to 1, or a number of frames above 1";
  return codec;
}

std::vector<Key> augment_keys() {
  using A = SpecAugmentSettings;
  return {
      {"model.spec_augment.freq_masks", Setting{field(&A::freq_masks, integer(0, 1024)), "2"},
       "number of masked frequency ranges per training clip"},
      {"model.spec_augment.time_masks", Setting{field(&A::time_masks, integer(0, 1024)), "10"},
       "number of masked time ranges per training clip"},
      {"model.spec_augment.freq_width", Setting{field(&A::freq_width, integer(0, kMaxSize)), "27"},
       "width of a masked frequency range is below this number of mel bands"},
      {"model.spec_augment.time_width", Setting{field(&A::time_width, time_width()), "0.05"},
       "width of a masked time range is below this number of frames; up to 1: this fraction of the clip"},
      {"model.init_from_pretrained_model", Refused{kNoInit}, ""},
      {"model.freeze", Refused{kNoFreeze}, ""},
  };
}

std::vector<Key> generator_keys() {
  using G = GeneratorSettings;
  const auto sizes = integer(1, kMaxSize);
  return {
      {"data.generator.clips", Setting{field(&G::clips, integer(1, kMaxSteps)), "null"},
       "number of synthetic clips to train on, instead of recordings", Effect::content},
      {"data.generator.validation_clips", Setting{field(&G::validation_clips, sizes), "64"},
       "number of synthetic clips to evaluate on, which differ from the training clips"},
      {"data.generator.seconds", Setting{field(&G::seconds, real({.low = 0.16, .high = 3600})), "4"},
       "length of the longest clip in seconds"},
      {"data.generator.tokens", Setting{field(&G::tokens, sizes), "12"},
       "tokens of the longest clip; shorter clips have proportionally fewer"},
      {"data.generator.vary", Setting{field(&G::vary, real(kFraction)), "0.5"},
       "clips are shorter than the longest by at most this fraction of its length"},
      {"data.generator.vocabulary", Setting{field(&G::vocabulary, sizes), "null"},
       "number of different tokens that are spoken, the first ones of the model; null: all"},
      {"data.generator.noise", Setting{field(&G::noise, real(kNotNegative)), "0.3"},
       "noise in the features, relative to the loudness of a token"},
      {"data.generator.seed", Setting{field(&G::seed, integer(0, kMaxSteps)), "1"},
       "seed of the clips; the language is the same for all seeds"},
  };
}

std::vector<Key> keys() {
  std::vector<Key> out = speech_model_keys();
  for (const auto& more : {augment_keys(), speech_input_keys(), recording_keys(), generator_keys()})
    out.insert(out.end(), more.begin(), more.end());
  return out;
}

Status check(const Config& config) {
  RETURN_IF_ERROR(check_speech_model(config));
  RETURN_IF_ERROR(check_recordings(config));
  const auto& data = config.settings.task_settings.get<GeneratorSettings>();
  if (clip_frames(data) < kShortestToken * data.tokens) {
    return clash_error(config, "data.generator.tokens", "data.generator.seconds",
                       fmt::format("a token takes at least {} frames of 10 ms: use tokens: {} or less",
                                   kShortestToken, clip_frames(data) / kShortestToken));
  }
  const auto known = known_speech_model(config.settings.model.name);
  if (!known || !data.vocabulary) return {};
  const std::int64_t tokens =
      with_speech_keys(*known, config.settings.task_settings.get<SpeechKeys>()).vocabulary;
  if (*data.vocabulary <= tokens) return {};
  return clash_error(config, "data.generator.vocabulary", "model.vocab_size",
                     fmt::format("the model has {} tokens: use at most that many", tokens));
}

// Checks that the config has exactly one source of clips (recordings or the generator) and all keys that the
// source needs.
Status check_data(const Config& config) {
  const auto& recordings = config.settings.task_settings.get<RecordingSettings>();
  const bool generates = config.settings.task_settings.get<GeneratorSettings>().clips.has_value();
  if (generates && recordings.train_manifest)
    return clash_error(config, "data.generator.clips", "data.train_manifest", "keep one");
  if (generates && recordings.has_budget()) {
    return clash_error(config, recordings.batch_seconds ? "data.batch_seconds" : "data.batch_lattice_cells",
                       "data.generator.clips",
                       "the size of generated batches is per_device_train_batch_size: remove it");
  }
  if (!generates && !recordings.train_manifest) {
    return Status::invalid(
        "data.train_manifest: not given; name the manifest of your recordings, `data: {train_manifest: "
        "train.jsonl, val_manifest: val.jsonl}` in the file or data.train_manifest=train.jsonl after it "
        "(without recordings, data.generator.clips=512 generates synthetic clips)");
  }
  if (!generates && !recordings.val_manifest) {
    return Status::invalid(
        "data.val_manifest: not given; name the recordings to evaluate on. `octavo data split` splits a "
        "manifest into both");
  }
  return {};
}

// Returns the steps of the recipe's warmup, shortened for a run of few steps.
std::int64_t warmup_of(const Config& config) {
  const auto& steps = config.settings.training.max_steps;
  const bool given = config.origin("training.max_steps").level != Origin::Level::standard && steps;
  return given ? std::min(recipe::kFineTuningWarmup, *steps / 10) : recipe::kFineTuningWarmup;
}

void add_fine_tuning(const Config& config, std::vector<Default>& out) {
  const TrainingSettings& training = config.settings.training;
  if (training.optimizer.algorithm != octavo::parse_algorithm(recipe::kWithFp32).value()) return;
  for (const auto& [path, text] : recipe::kFineTuning) {
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);  // in every locale
    // The recipe's min_lr does not apply if the user chose a learning rate below it.
    if (path == "training.min_lr" && value > training.learning_rate) continue;
    out.push_back({path, std::string(text)});
  }
  out.push_back({"training.warmup_steps", std::to_string(warmup_of(config))});
  out.push_back({"training.max_steps", "null"});  // the recipe sets num_train_epochs instead
}

std::vector<Default> defaults(const Config& config) {
  const Settings& settings = config.settings;
  const auto& recordings = settings.task_settings.get<RecordingSettings>();
  const bool trained_before =
      settings.task_settings.get<SpeechKeys>().pretrained && settings.model.name != kFastConformer;
  std::vector<Default> out;
  if (recordings.train_manifest) out.push_back({"data.dataloader_num_workers", "8"});
  if (recordings.has_budget()) {
    out.push_back({"training.per_device_train_batch_size", "auto"});
  } else if (trained_before) {
    out.push_back({"training.per_device_train_batch_size", "16"});
  }
  if (trained_before) add_fine_tuning(config, out);
  return out;
}

}  // namespace

TaskConfig speech_task_config() {
  return {
      .name = "speech",
      .meaning =
          "Speech recognition: a FastConformer with a transducer (TDT, RNN-T) or CTC, trained on recordings "
          "or on synthetic\nclips. A key of the model that is null has the value of the model that "
          "`model.name` names. Keys such as\n`model.encoder.d_model` may be nested: `model: {encoder: "
          "{d_model: 256}}`.",
      .models =
          "fastconformer, nvidia/parakeet-tdt-0.6b-v2, nvidia/parakeet-tdt-0.6b-v3, or the path of a "
          "model in files, such as ./model.nemo or ./FOLDER",
      .metrics = {"loss", "wer"},
      .example = R"(model:
  name: nvidia/parakeet-tdt-0.6b-v3
  gradient_checkpointing: true
data:
  train_manifest: train.jsonl
  val_manifest: val.jsonl
  batch_seconds: 400
training: {learning_rate: 1.0e-4, num_train_epochs: 3, save_best: wer}
output_dir: runs/parakeet
)",
      .takes = is_speech_model,
      .keys = keys,
      .check = check,
      .check_complete = check_data,
      .recipe = defaults,
      .limits_batches = true};
}

}  // namespace octavo_train
