// SPDX-License-Identifier: MIT
#include "train/tasks/speech/task.h"

#include "precision.h"
#include "train/format/numbers.h"
#include "train/model.h"
#include "train/tasks/speech/augment.h"
#include "train/tasks/speech/batch.h"
#include "train/tasks/speech/entry.h"
#include "train/tasks/speech/greedy.h"
#include "train/tasks/speech/origin.h"
#include "train/tasks/speech/weights.h"
#include "train/tasks/speech/wer.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace octavo::train {
namespace {

constexpr const char* kClips = "clips";                             // of the record
constexpr std::uint64_t kValidationClips = std::uint64_t{1} << 60;  // numbers: others than those to train on
constexpr std::int64_t kPreviews = 3;

// How much of a set a batch is, by the reduction: so that its loss does not depend on the batches.
double weight_of(const SpeechClips& clips, const std::string& reduction) {
  const auto labels = clips.target_lengths_on_host;
  if (reduction != "mean_volume") return static_cast<double>(labels.size());
  return static_cast<double>(std::accumulate(labels.begin(), labels.end(), std::int64_t{0}));
}

std::string seconds_text(double seconds) { return significant(seconds, 4) + " s"; }

}  // namespace

std::unique_ptr<Task> SpeechEntry::make() { return std::make_unique<SpeechTask>(); }

Status SpeechTask::take(const Settings& settings) {
  settings_ = settings;
  clips_ = settings.own.get<GeneratorSettings>();
  augment_ = settings.own.get<SpecAugmentSettings>();
  if (!archive_) {
    auto origin = open_speech_origin(settings);
    if (!origin.ok()) return origin.status();
    archive_ = std::move(*origin);
    if (archive_) about_model_ = archive_->config().notes;
  }
  auto model = speech_model_of(settings, archive_ ? &*archive_ : nullptr);
  if (!model.ok()) return model.status();
  model_settings_ = std::move(*model);
  const std::int64_t spoken = clips_.vocabulary.value_or(0), tokens = model_settings_.vocabulary;
  if (spoken <= tokens) return {};
  return Status::invalid("data.generator.vocabulary: got " + std::to_string(spoken) + ", but " +
                         settings.model.name + " has " + std::to_string(tokens) +
                         " tokens: use as many or fewer");
}

Result<Task::DataChange> SpeechTask::open(const Opening& opening) {
  if (Status bad = take(opening.settings); !bad.ok()) return bad;
  DataChange out;
  const std::int64_t now = samples();
  if (opening.record == nullptr) return out;
  const auto then = opening.record->value(kClips, now);
  if (then != now)
    out.noted.push_back("data.generator.clips: there were " + std::to_string(then) + ", and are " +
                        std::to_string(now));
  return out;
}

nlohmann::ordered_json SpeechTask::data_record() const { return {{kClips, samples()}}; }

std::shared_ptr<torch::nn::Module> SpeechTask::build(const Settings& settings) {
  const Status taken = take(settings);
  TORCH_CHECK(taken.ok(), taken.message());
  model_ = std::make_shared<SpeechModelImpl>(model_settings_);
  return model_;
}

Status SpeechTask::load_first_weights() {
  if (!archive_) return {};
  auto loaded = load_archive(*archive_, tensors_of(*model_));
  if (!loaded.ok()) return loaded.status();
  about_model_.push_back(std::move(*loaded));
  archive_.reset();  // its memory
  return {};
}

ClipPlan SpeechTask::plan(std::uint64_t number, bool longest) const {
  return plan_clip(clips_, clips_.vocabulary.value_or(model_settings_.vocabulary), number, longest);
}

Batch SpeechTask::draw(const std::vector<ClipPlan>& plans) const {
  Batch out = make_batch(clips_, plans, model_settings_.mel_bands);
  check_batch(out, model_settings_.vocabulary);
  return out;
}

Batch SpeechTask::read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const {
  std::vector<std::uint64_t> draws(static_cast<std::size_t>(rows));
  std::iota(draws.begin(), draws.end(), first_draw);
  std::vector<ClipPlan> plans;
  for (const std::uint64_t each : draws)
    plans.push_back(plan(static_cast<std::uint64_t>(order.sample(each))));
  Batch out = draw(plans);
  out.draws = std::move(draws);
  return out;
}

Batch SpeechTask::largest(const Order& order, std::int64_t rows) const {
  std::vector<ClipPlan> plans;
  Batch out;
  for (std::int64_t i = 0; i < rows; ++i) plans.push_back(plan(static_cast<std::uint64_t>(i), true));
  out = draw(plans);
  for (std::int64_t i = 0; i < rows; ++i) out.draws.push_back(order.start() + static_cast<std::uint64_t>(i));
  return out;
}

torch::Tensor SpeechTask::loss(const Batch& batch, const PassKey& key) {
  SpeechClips clips = clips_of(batch);
  const auto step = static_cast<std::uint64_t>(key.step);
  if (model_->is_training()) {
    std::vector<Masks> masks;
    for (std::size_t i = 0; i < batch.draws.size(); ++i)
      masks.push_back(draw_masks(augment_, clips.feature_lengths_on_host[i], model_settings_.mel_bands,
                                 {key.seed, step, batch.draws[i]}));
    clips.features = masked(clips.features, masks);
  }
  return model_->loss(clips, {key.seed, step, draw_numbers(batch, clips.features.device())});
}

std::vector<std::string> SpeechTask::texts(const Encoded& encoded) {
  const std::vector<Transcript> found = model_settings_.head == SpeechHead::ctc
                                            ? decode_ctc(model_->ctc_logits(encoded.frames), encoded.lengths)
                                            : decode_greedy(*model_, encoded.frames, encoded.lengths);
  std::vector<std::string> out;
  for (const Transcript& each : found) {
    std::vector<std::int64_t> tokens;
    for (const Emission& emission : each) tokens.push_back(emission.token);
    out.push_back(transcript(tokens));
  }
  return out;
}

std::optional<Evaluation> SpeechTask::evaluate(const torch::Device& device,
                                               const std::function<bool()>& stop) {
  const torch::NoGradGuard no_grad;
  const EvalScope scope(*model_);
  const AutocastScope autocast(device, settings_.training.compute_dtype);
  const std::int64_t most = settings_.data.max_eval_samples,
                     rows = settings_.training.per_device_eval_batch_size;
  const std::int64_t all = most < 0 ? clips_.validation_clips : std::min(clips_.validation_clips, most);
  double loss = 0, weight = 0;
  WordErrors errors;
  for (std::int64_t first = 0; first < all; first += rows) {
    if (stop()) return std::nullopt;
    std::vector<ClipPlan> plans;
    for (std::int64_t i = first; i < std::min(first + rows, all); ++i)
      plans.push_back(plan(kValidationClips + static_cast<std::uint64_t>(i)));
    const Batch batch = to_device(draw(plans), device);
    const SpeechClips clips = clips_of(batch);
    const Encoded encoded = model_->encode(clips.features, clips.feature_lengths, {});
    const double share = weight_of(clips, model_settings_.reduction);
    loss += model_->loss(encoded, clips, {}).item<double>() * share;
    weight += share;
    const std::vector<std::string> heard = texts(encoded);
    for (std::size_t i = 0; i < plans.size(); ++i)
      errors += word_errors(transcript(plans[i].tokens), heard[i]);
  }
  return Evaluation{{{"loss", loss / weight, Better::lower}, {"wer", errors.rate(), Better::lower}}, all};
}

std::optional<Preview> SpeechTask::preview(const torch::Device& device,
                                           const std::function<bool()>& /*stop*/) {
  const torch::NoGradGuard no_grad;
  const EvalScope scope(*model_);
  const AutocastScope autocast(device, settings_.training.compute_dtype);
  std::vector<ClipPlan> plans;
  for (std::int64_t i = 0; i < std::min(kPreviews, clips_.validation_clips); ++i)
    plans.push_back(plan(kValidationClips + static_cast<std::uint64_t>(i)));
  const Batch batch = to_device(draw(plans), device);
  const SpeechClips clips = clips_of(batch);
  const std::vector<std::string> heard = texts(model_->encode(clips.features, clips.feature_lengths, {}));
  std::string said, all;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const std::string reference = transcript(plans[i].tokens);
    said += (i == 0 ? "" : "\n") + reference;
    all += "\nsaid:  " + reference + "\nheard: " + heard[i] + '\n';
  }
  std::string text;
  for (std::size_t i = 0; i < heard.size(); ++i) text += (i == 0 ? "" : "\n") + heard[i];
  return Preview{"clips that it was not trained on", all, {{"prompt", said}, {"text", text}}};
}

std::vector<std::string> SpeechTask::introduction() const {
  std::vector<std::string> out = about_model_;
  out.push_back(std::to_string(samples()) + " clips of up to " + seconds_text(clips_.seconds) +
                " to train on and " + std::to_string(clips_.validation_clips) +
                " to evaluate on, which a generator makes");
  return out;
}

void SpeechTask::describe(nlohmann::ordered_json& start) const {
  start["data"] = std::to_string(samples()) + " generated clips of up to " + seconds_text(clips_.seconds);
}

std::string SpeechTask::batch_text(std::int64_t rows) const {
  const ClipPlan longest = plan(0, true);
  const auto tokens = static_cast<std::int64_t>(longest.tokens.size());
  std::string out = std::to_string(rows) + " clips of up to " + seconds_text(clips_.seconds) + " and " +
                    std::to_string(tokens) + " tokens";
  if (model_settings_.head != SpeechHead::ctc)
    out += " (" + std::to_string(rows * subsampled(longest.frames) * (tokens + 1)) + " cells of the loss)";
  return out;
}

MemoryAdvice SpeechTask::memory_advice() const {
  MemoryAdvice out;
  if (!model_settings_.checkpoint_encoder)
    out.first.emplace_back("model.gradient_checkpointing=true (activations of one layer instead of all)");
  if (clips_.seconds > 1) out.last.push_back("data.generator.seconds=" + significant(clips_.seconds / 2, 4));
  return out;
}

std::string SpeechTask::shorter_steps() const {
  const TrainingSettings& training = settings_.training;
  return "a smaller model (encoder.n_layers is " + std::to_string(model_settings_.encoder_layers) +
         ", encoder.d_model is " + std::to_string(model_settings_.width) +
         "); fewer or shorter clips in a step (per_device_train_batch_size is " +
         std::to_string(training.per_device_train_batch_size) + ", gradient_accumulation_steps is " +
         std::to_string(training.gradient_accumulation_steps) + ", generator.seconds is " +
         significant(clips_.seconds, 4) + ')';
}

}  // namespace octavo::train
