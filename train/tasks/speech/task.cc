// SPDX-License-Identifier: MIT
#include "train/tasks/speech/task.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/model/model.h"
#include "train/nn/subsampling.h"
#include "train/optim/precision.h"
#include "train/tasks/speech/archive/run_model.h"
#include "train/tasks/speech/archive/weights.h"
#include "train/tasks/speech/data/batch.h"
#include "train/tasks/speech/data/generated_clips.h"
#include "train/tasks/speech/data/recordings.h"
#include "train/tasks/speech/entry.h"
#include "train/tasks/speech/features/spec_augment.h"
#include "train/tasks/speech/recognition/greedy.h"
#include "train/tasks/speech/recognition/score.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kExamples = 8;  // examples per evaluation

// Returns the weight of a batch's loss in the loss of the full set. It depends on the reduction, so that the
// total does not depend on how clips are divided into batches.
double weight_of(const SpeechClips& clips, const std::string& reduction) {
  const auto labels = clips.target_lengths_on_host;
  if (reduction != "mean_volume") return static_cast<double>(labels.size());
  return static_cast<double>(std::accumulate(labels.begin(), labels.end(), std::int64_t{0}));
}

// Returns the reference texts of a batch, which is on the host.
std::vector<std::string> references(const ClipSource& clips, const Batch& batch) {
  const torch::Tensor &targets = batch.at(ClipTensors::targets),
                      &lengths = batch.at(ClipTensors::target_lengths);
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < targets.size(0); ++i) {
    out.push_back(clips.text({targets.const_data_ptr<std::int64_t>() + i * targets.size(1),
                              static_cast<std::size_t>(lengths.const_data_ptr<std::int64_t>()[i])}));
  }
  return out;
}

}  // namespace

std::unique_ptr<Task> SpeechEntry::make() { return std::make_unique<SpeechTask>(); }

Status SpeechTask::take(const Settings& settings) {
  settings_ = settings;
  augment_ = settings.own.get<SpecAugmentSettings>();
  if (!archive_) {
    ASSIGN_OR_RETURN(auto origin, open_speech_origin(settings));
    archive_ = std::move(origin);
    if (archive_) about_model_ = archive_->config().notes;
  }
  ASSIGN_OR_RETURN(auto model, speech_model_of(settings, archive_ ? &*archive_ : nullptr));
  model_settings_ = std::move(model);
  return {};
}

Result<Task::DataChange> SpeechTask::open(const Opening& opening) {
  RETURN_IF_ERROR(take(opening.settings));
  ASSIGN_OR_RETURN(auto clips,
                   open_clips(opening.settings, model_settings_, archive_ ? &*archive_ : nullptr));
  clips_ = std::move(clips);
  return opening.record == nullptr ? DataChange{} : clips_->compare(*opening.record);
}

nlohmann::ordered_json SpeechTask::data_record() const { return clips_->record(); }

std::shared_ptr<torch::nn::Module> SpeechTask::build(const Settings& settings) {
  const Status taken = take(settings);
  TORCH_CHECK(taken.ok(), taken.message());
  featurizer_.reset();  // its tables are on the previous model's device
  model_ = std::make_shared<SpeechModelImpl>(model_settings_);
  return model_;
}

ReinitializedLayers SpeechTask::reinitialized_layers() const { return speech_reinitialized_layers(); }

Status SpeechTask::load_first_weights() {
  if (!archive_) return {};
  ASSIGN_OR_RETURN(auto loaded, load_archive(*archive_, tensors_of(*model_)));
  about_model_.insert(about_model_.end(), loaded.begin(), loaded.end());
  archive_.reset();  // frees its memory
  return {};
}

Result<std::unique_ptr<ClipSource>> open_clips(const Settings& settings, const SpeechModelSettings& model,
                                               const SpeechArchive* origin) {
  return settings.own.get<RecordingSettings>().train_manifest ? Recordings::open(settings, model, origin)
                                                              : GeneratedClips::open(settings, model);
}

std::map<std::string, std::string> SpeechTask::checkpoint_extra_files() const {
  const Tokenizer* const tokenizer = clips_->tokenizer();
  if (tokenizer == nullptr) return {};
  return octavo_train::checkpoint_extra_files({model_settings_, *clips_->features()}, tokenizer->bytes());
}

torch::Tensor SpeechTask::features_of(const Batch& batch, const DropoutKey* pass) {
  const torch::Tensor& audio = batch.at(ClipTensors::audio);
  if (!featurizer_) featurizer_.emplace(*clips_->features(), audio.device(), clips_->feature_tables());
  const auto lengths = audio_lengths(batch);
  return (pass == nullptr ? (*featurizer_)(audio, lengths) : (*featurizer_)(audio, lengths, *pass)).frames;
}

SpeechClips SpeechTask::prepared(const Batch& batch, const DropoutKey* pass) {
  SpeechClips out = has_audio(batch) ? clips_of(batch, features_of(batch, pass)) : clips_of(batch);
  const FeatureSettings* const settings = clips_->features();
  if (pass == nullptr || settings == nullptr || out.feature_lengths_on_host.empty()) return out;
  out.features = padded_for_training(out.features, std::ranges::max(out.feature_lengths_on_host), *settings);
  return out;
}

bool SpeechTask::set_gate(WeightGate gate) {
  model_->set_gate(gate);
  return true;
}

torch::Tensor SpeechTask::loss(const Batch& batch, const PassKey& key) {
  const auto step = static_cast<std::uint64_t>(key.step);
  const DropoutKey pass{key.seed, step, draw_numbers(batch, batch.at(ClipTensors::targets).device())};
  SpeechClips clips = prepared(batch, model_->is_training() ? &pass : nullptr);
  if (model_->is_training()) {
    std::vector<Masks> masks;
    for (std::size_t i = 0; i < batch.draws.size(); ++i)
      masks.push_back(draw_masks(augment_, clips.feature_lengths_on_host[i], model_settings_.mel_bands,
                                 {key.seed, step, batch.draws[i]}));
    clips.features = masked(clips.features, masks);
  }
  return model_->loss(clips, pass);
}

std::vector<std::string> SpeechTask::texts(const Encoded& encoded) {
  std::vector<std::string> out;
  for (const Transcript& each : decode_encoded(*model_, encoded)) {
    std::vector<std::int64_t> tokens;
    for (const Emission& emission : each) tokens.push_back(emission.token);
    out.push_back(clips_->text(tokens));
  }
  return out;
}

std::int64_t SpeechTask::evaluated() const {
  const std::int64_t all = clips_->validation_samples(), most = settings_.data.max_eval_samples;
  return most < 0 ? all : std::min(all, most);
}

std::optional<Tally> SpeechTask::tally(const EvaluationCall& call) {
  const torch::NoGradGuard no_grad;
  const EvalScope scope(*model_);
  const AutocastScope autocast(call.device, settings_.training.compute_dtype);
  const std::int64_t all = evaluated(), rows = settings_.training.per_device_eval_batch_size;
  double loss = 0, weight = 0;
  WordErrors errors;
  Tally out;
  for (std::int64_t first = call.rank * rows; first < all; first += call.ranks * rows) {
    if (call.stop()) return std::nullopt;
    const std::int64_t asked = std::min(rows, all - first);
    const Batch host = clips_->validation(first, asked);
    const Batch batch = to_device(host, call.device);
    out.units += asked;
    if (host.rows() == 0) continue;  // all clips of the batch were skipped
    const SpeechClips clips = prepared(batch, nullptr);
    const Encoded encoded = model_->encode(clips.features, clips.feature_lengths, {});
    const double share = weight_of(clips, model_settings_.reduction);
    loss += model_->loss(encoded, clips, {}).item<double>() * share;
    weight += share;
    const std::vector<std::string> said = references(*clips_, host), heard = texts(encoded);
    for (std::size_t i = 0; i < said.size(); ++i) {
      errors += word_errors(said[i], heard[i]);
      if (out.examples.size() < kExamples)
        out.examples.push_back(
            {clips_->clip_name(host.draws[i]), said[i], heard[i], static_cast<std::int64_t>(host.draws[i])});
    }
  }
  out.sums = {loss,
              weight,
              static_cast<double>(errors.substitutions),
              static_cast<double>(errors.deletions),
              static_cast<double>(errors.insertions),
              static_cast<double>(errors.words)};
  return out;
}

Evaluation SpeechTask::evaluation(const Tally& all) const {
  if (all.examples.empty())
    throw Error(
        Status::invalid("data.val_manifest: all clips to evaluate on are bad; skipped.jsonl says why"));
  const auto count = [&](std::size_t i) { return static_cast<std::int64_t>(all.sums[i]); };
  const WordErrors errors{count(2), count(3), count(4), count(5)};
  const auto shown = static_cast<std::ptrdiff_t>(std::min(all.examples.size(), kExamples));
  return {{{"loss", all.sums[0] / all.sums[1], Better::lower}, {"wer", errors.rate(), Better::lower}},
          all.units,
          {all.examples.begin(), all.examples.begin() + shown}};
}

std::vector<std::string> SpeechTask::introduction() const {
  std::vector<std::string> out = about_model_;
  for (std::string& line : clips_->introduction()) out.push_back(std::move(line));
  return out;
}

void SpeechTask::describe(nlohmann::ordered_json& start) const { start["data"] = clips_->name(); }

std::string SpeechTask::batch_text(std::int64_t rows) const {
  rows = clips_->most_rows(rows);
  const auto [frames, tokens] = clips_->longest();
  std::string out = std::to_string(rows) + " clips of up to " +
                    significant(static_cast<double>(frames) / static_cast<double>(kFramesPerSecond), 4) +
                    " s and " + std::to_string(tokens) + " tokens";
  if (model_settings_.head != SpeechHead::ctc)
    out += " (" + std::to_string(rows * subsampled(frames) * (tokens + 1)) + " cells of the loss)";
  return out;
}

std::vector<std::string> SpeechTask::memory_advice() const {
  const std::string shorter = clips_->shorter();
  return shorter.empty() ? std::vector<std::string>() : std::vector{shorter};
}

// The size of a model that is read from files is fixed.
Task::SizeKey SpeechTask::model_key() const {
  if (archive_) return {};
  return {"model.encoder.n_layers", model_settings_.encoder_layers, 1};
}

std::string SpeechTask::shorter_steps() const {
  const TrainingSettings& training = settings_.training;
  const std::int64_t rows = training.per_device_train_batch_size;
  return "a smaller model (encoder.n_layers is " + std::to_string(model_settings_.encoder_layers) +
         ", encoder.d_model is " + std::to_string(model_settings_.width) +
         "); fewer or shorter clips in a step (per_device_train_batch_size is " +
         (rows == kNoLimit ? "auto" : std::to_string(rows)) + ", gradient_accumulation_steps is " +
         std::to_string(training.gradient_accumulation_steps) + ", " + clips_->length_text() + ')';
}

}  // namespace octavo_train
