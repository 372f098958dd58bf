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
#include "train/tasks/speech/entry.h"
#include "train/tasks/speech/features/spec_augment.h"
#include "train/tasks/speech/recognition/greedy.h"
#include "train/tasks/speech/recognition/score.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <fmt/format.h>
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
  augment_ = settings.task_settings.get<SpecAugmentSettings>();
  if (!archive_) {
    ASSIGN_OR_RETURN(auto origin, open_pretrained_archive(settings));
    if (origin) archive_ = std::make_shared<const SpeechArchive>(std::move(*origin));
    if (archive_) about_model_ = archive_->config().notes;
  }
  ASSIGN_OR_RETURN(auto model, speech_model_of(settings, archive_.get()));
  model_settings_ = std::move(model);
  return {};
}

Result<TaskData> SpeechTask::open(const OpenArgs& args) {
  RETURN_IF_ERROR(take(args.settings));
  ASSIGN_OR_RETURN(auto clips, open_clips(args.settings, model_settings_, archive_.get()));
  clips_ = std::move(clips);
  return TaskData{.samples = clips_->samples(),
                  .record = clips_->record(),
                  .batches = clips_->batches(),
                  .change = args.record == nullptr ? DataChange() : clips_->compare(*args.record)};
}

std::unique_ptr<Task> SpeechTask::copy_without_model() const {
  auto out = std::make_unique<SpeechTask>();
  out->settings_ = settings_;
  out->clips_ = clips_;
  out->augment_ = augment_;
  out->model_settings_ = model_settings_;
  out->archive_ = archive_;
  return out;
}

TaskModel SpeechTask::build(const Settings& settings) {
  const Status taken = take(settings);
  TORCH_CHECK(taken.ok(), taken.message());
  featurizer_.reset();  // its tables are on the previous model's device
  model_ = std::make_shared<SpeechModelImpl>(model_settings_);
  TaskModel out{.module = model_, .reinitialized_layers = speech_reinitialized_layers()};
  out.set_gate = [model = model_](const WeightGate& gate) { model->set_gate(gate); };
  if (archive_) out.load_first_weights = [this] { return load_first_weights(); };
  if (clips_ != nullptr && clips_->tokenizer() != nullptr)
    out.extra_files =
        checkpoint_extra_files({model_settings_, *clips_->features()}, clips_->tokenizer()->bytes());
  return out;
}

Status SpeechTask::load_first_weights() {
  ASSIGN_OR_RETURN(auto loaded, load_archive(*archive_, tensors_of(*model_)));
  about_model_.insert(about_model_.end(), loaded.begin(), loaded.end());
  archive_.reset();  // frees its memory
  return {};
}

Result<std::unique_ptr<ClipSource>> open_clips(const Settings& settings, const SpeechModelSettings& model,
                                               const SpeechArchive* origin) {
  return settings.task_settings.get<RecordingSettings>().train_manifest
             ? open_recordings(settings, model, origin)
             : open_generated_clips(settings, model);
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

std::optional<Tally> SpeechTask::evaluate_shard(const EvaluationCall& call) {
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
    const std::vector<std::string> said = references(*clips_, host), transcribed = texts(encoded);
    for (std::size_t i = 0; i < said.size(); ++i) {
      errors += word_errors(said[i], transcribed[i]);
      if (out.examples.size() < kExamples)
        out.examples.push_back({clips_->clip_name(host.draws[i]), said[i], transcribed[i],
                                static_cast<std::int64_t>(host.draws[i])});
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

Evaluation SpeechTask::summarize(const Tally& all) const {
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

TaskText SpeechTask::text() const {
  TaskText out = clips_->describe();
  out.unit = {"clips", "clips"};
  out.introduction.insert(out.introduction.begin(), about_model_.begin(), about_model_.end());
  out.batch = [clips = clips_, cells = model_settings_.head != SpeechHead::ctc](std::int64_t asked) {
    const std::int64_t rows = clips->most_rows(asked);
    const auto [frames, tokens] = clips->longest();
    const double seconds = static_cast<double>(frames) / static_cast<double>(kFramesPerSecond);
    return fmt::format(
        "{} clips of up to {} s and {} tokens{}", rows, significant(seconds, 4), tokens,
        cells ? fmt::format(" ({} cells of the loss)", rows * subsampled(frames) * (tokens + 1)) : "");
  };
  const TrainingSettings& training = settings_.training;
  const std::int64_t rows = training.per_device_train_batch_size;
  out.speed_advice = fmt::format(
      "a smaller model (encoder.n_layers is {}, encoder.d_model is {}); fewer or shorter clips in "
      "a step (per_device_train_batch_size is {}, gradient_accumulation_steps is {}, {})",
      model_settings_.encoder_layers, model_settings_.width, rows == kNoLimit ? "auto" : std::to_string(rows),
      training.gradient_accumulation_steps, out.speed_advice);
  // The size of a model that is read from files is fixed.
  if (!archive_) out.model_key = {"model.encoder.n_layers", model_settings_.encoder_layers, 1};
  return out;
}

}  // namespace octavo_train
