// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recordings.h"

#include "train/audio/audio.h"
#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/config/paths.h"
#include "train/data/noise.h"
#include "train/tasks/speech/batch.h"
#include "train/tasks/speech/pretrained_source.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace octavo_train {
namespace {

constexpr double kNoiseLimit = 1e6;      // seconds; the maximum duration of a noise recording
constexpr std::uint64_t kRehearsal = 1;  // seed of the noise in largest()

ManifestOptions options_of(const RecordingSettings& settings) {
  ManifestOptions out;
  out.min_duration = settings.min_duration;
  out.max_duration = settings.max_duration;
  out.bad = settings.bad_clips;
  out.text_field = settings.text_field;
  out.lang_field = settings.lang_field;
  return out;
}

Result<Manifest> open_manifest(const char* key, const Settings& settings, const Manifests& sources,
                               const ManifestOptions& options) {
  auto out = Manifest::open(sources, options);
  if (out.ok()) return out;
  std::string where;
  for (const ManifestSource& each : sources) {
    if (where.empty() && !path_exists(each.path)) where = places_looked_at(settings, each.path);
  }
  return Status(out.status().code(), std::string(key) + ": " + out.status().message() + where);
}

BatchBudget budget_of(const RecordingSettings& settings, std::int64_t rows) {
  return {rows == kNoLimit ? std::nullopt : std::optional(rows), settings.batch_seconds,
          settings.batch_cells};
}

}  // namespace

struct Recordings::Opened {
  RecordingSettings settings;
  Tokenizer tokenizer;
  FeatureSettings features;
  FeatureTables tables;
  Manifest train, validation;
  std::optional<Manifest> noise;
  std::int64_t most_evaluated;
  SpeechHead head;
  std::uint64_t seed;
  std::int64_t rows;  // maximum clips per batch
};

Recordings::Recordings(Opened opened)
    : settings_(std::move(opened.settings)),
      tokenizer_(std::move(opened.tokenizer)),
      features_(opened.features),
      tables_(std::move(opened.tables)),
      train_(std::move(opened.train)),
      validation_(std::move(opened.validation)),
      noise_(std::move(opened.noise)),
      most_evaluated_(opened.most_evaluated),
      reader_(std::make_unique<ClipReader>(tokenizer_, features_, settings_, noise_ ? &*noise_ : nullptr,
                                           opened.head, opened.seed)),
      plan_(std::make_unique<LengthBuckets>([this](std::int64_t sample) { return cost(sample); },
                                            budget_of(settings_, opened.rows), settings_.bucket_buffer_size)),
      longest_(find_longest()) {}

Result<std::unique_ptr<ClipSource>> Recordings::open(const Settings& settings,
                                                     const SpeechModelSettings& model,
                                                     const SpeechArchive* origin) {
  if (!audio_built_in()) return probe_audio("data.train_manifest").status();
  const auto& keys = settings.own.get<RecordingSettings>();
  ASSIGN_OR_RETURN(auto tokenizer, open_speech_tokenizer(settings, origin));
  if (tokenizer.size() != model.vocabulary) {
    return Status::invalid("model.vocab_size: got " + std::to_string(model.vocabulary) + ", but " +
                           tokenizer.name() + " has " + std::to_string(tokenizer.size()) + " tokens");
  }
  ASSIGN_OR_RETURN(const auto features, speech_features_of(settings, origin, model));
  RETURN_IF_ERROR(check_features(features));
  ASSIGN_OR_RETURN(auto tables, speech_tables_of(features, origin));
  const ManifestOptions options = options_of(keys);
  ASSIGN_OR_RETURN(auto train, open_manifest("data.train_manifest", settings, *keys.train_manifest, options));
  ASSIGN_OR_RETURN(auto validation,
                   open_manifest("data.val_manifest", settings, *keys.val_manifest, options));
  std::optional<Manifest> noise;
  if (keys.noise_manifest) {
    ManifestOptions any = options;
    any.max_duration = kNoiseLimit;
    any.needs_text = false;
    ASSIGN_OR_RETURN(auto opened, open_manifest("data.noise_manifest", settings, *keys.noise_manifest, any));
    noise = std::move(opened);
  }
  std::unique_ptr<Recordings> out(new Recordings(
      {keys, std::move(tokenizer), features, std::move(tables), std::move(train), std::move(validation),
       std::move(noise), settings.data.max_eval_samples, model.head,
       static_cast<std::uint64_t>(settings.training.seed), settings.training.per_device_train_batch_size}));
  if (keys.cache_features) {
    auto cache = FeatureCache::open(*keys.cache_features, features, out->tables_);
    if (!cache.ok()) return Status(cache.status().code(), "data.cache_features: " + cache.status().message());
    out->cache_ = std::move(*cache);
    out->featurizer_.emplace(features, torch::Device(torch::kCPU), out->tables_);
  }
  for (const Manifest* each : {&out->train_, &out->validation_}) {
    for (std::int64_t i = 0; i < each->report().left_out(); ++i) {
      RETURN_IF_ERROR(out->skipped_.add(each->left_out(i)));
    }
  }
  return std::unique_ptr<ClipSource>(std::move(out));
}

Result<LoadedClip> Recordings::heard(const ManifestEntry& entry, std::optional<std::uint64_t> draw) const {
  if (!cache_) return reader_->read(entry, draw);
  const CachedClip kept{entry.audio, entry.offset, entry.duration};
  if (auto found = cache_->find(kept)) {
    ASSIGN_OR_RETURN(auto said, reader_->said(entry));
    return LoadedClip{{}, std::move(said), std::move(*found)};
  }
  auto out = reader_->read(entry);
  if (!out.ok()) return out;
  const torch::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(out->samples.size());
  const torch::Tensor made =
      (*featurizer_)(torch::from_blob(out->samples.data(), {1, count}), std::span(&count, 1))
          .frames.contiguous();
  out->features.assign(made.const_data_ptr<float>(), made.const_data_ptr<float>() + made.numel());
  cache_->keep(kept, out->features);
  return out;
}

std::optional<LoadedClip> Recordings::clip(const Manifest& manifest, std::int64_t index,
                                           std::optional<std::uint64_t> draw) const {
  const ManifestEntry entry = manifest.entry(index);
  auto read = heard(entry, draw);
  if (read.ok()) return std::move(*read);
  const std::string why = read.status().message(), place = manifest.place(index);
  if (settings_.bad_clips == BadClips::error) {
    throw Error(Status::invalid(place + ": " + why +
                                "; repair or remove it, or go on without bad clips (data.bad_clips: skip)"));
  }
  if (Status bad = skipped_.add({place, entry.audio, why}); !bad.ok()) throw Error(bad);
  return std::nullopt;
}

Batch Recordings::read(const Order& order, std::uint64_t first, std::int64_t rows) const {
  std::vector<std::uint64_t> read;
  std::vector<LoadedClip> clips;
  for (const std::uint64_t draw : plan_->draws(order, first, rows)) {
    auto one = clip(train_, order.sample(draw), draw);
    if (!one) continue;
    clips.push_back(std::move(*one));
    read.push_back(draw);
  }
  Batch out = make_batch(features_, clips);
  out.draws = std::move(read);
  return out;
}

std::int64_t Recordings::validation_samples() const {
  return most_evaluated_ < 0 ? validation_.size() : std::min(validation_.size(), most_evaluated_);
}

// Returns validation clips that are spread evenly over the validation set.
Batch Recordings::validation(std::int64_t first, std::int64_t rows) const {
  const std::int64_t all = validation_.size(), taken = validation_samples();
  std::vector<LoadedClip> clips;
  std::vector<std::uint64_t> numbers;
  for (std::int64_t i = first; i < first + rows; ++i) {
    const std::int64_t index = all / taken * i + all % taken * i / taken;
    auto one = clip(validation_, index, std::nullopt);
    if (!one) continue;
    clips.push_back(std::move(*one));
    numbers.push_back(static_cast<std::uint64_t>(index));
  }
  Batch out = make_batch(features_, clips);
  out.draws = std::move(numbers);
  return out;
}

std::string Recordings::clip_name(std::uint64_t number) const {
  const std::string path = validation_.entry(static_cast<std::int64_t>(number)).audio;
  return path.substr(path.rfind('/') + 1);
}

// Returns the cost of a sample. Reads its line again only if the text matters.
ClipCost Recordings::cost(std::int64_t sample) const {
  return reader_->cost(train_.duration(sample),
                       settings_.batch_cells ? train_.entry(sample).text : std::string());
}

// Returns a batch of synthetic noise of the given size. Reads no recording: errors in recordings are reported
// when they are read for training.
Batch Recordings::of_noise(const ClipSize& size, const Order& order, std::int64_t rows) const {
  LoadedClip one;
  one.samples.resize(static_cast<std::size_t>(size.frames * features_.hop()));
  for (std::size_t i = 0; i < one.samples.size(); ++i) one.samples[i] = 0.1F * normal_noise(kRehearsal, i);
  for (std::int64_t i = 0; i < size.tokens; ++i) one.tokens.push_back(i % tokenizer_.size());
  Batch out = make_batch(features_, std::vector<LoadedClip>(static_cast<std::size_t>(rows), one));
  for (std::int64_t i = 0; i < rows; ++i) out.draws.push_back(order.start() + static_cast<std::uint64_t>(i));
  return out;
}

Batch Recordings::largest(const Order& order, std::int64_t rows) const {
  return of_noise(longest_, order, most_rows(rows));
}

Batch Recordings::largest_to_evaluate(const Order& order, std::int64_t rows) const {
  return of_noise(size_of(longest_of(validation_)), order, rows);
}

std::string Recordings::text(std::span<const std::int64_t> tokens) const { return tokenizer_.decode(tokens); }

}  // namespace octavo_train
