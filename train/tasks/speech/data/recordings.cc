// The recordings of manifests as a ClipSource. data.bad_clips decides whether a bad clip ends the run or is
// skipped and listed.
// SPDX-License-Identifier: MIT
#include "train/audio/audio.h"
#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/config/paths.h"
#include "train/data/length_buckets.h"
#include "train/data/mix.h"
#include "train/io/checksums.h"
#include "train/nn/frames.h"
#include "train/tasks/speech/archive/run_model.h"
#include "train/tasks/speech/data/batch.h"
#include "train/tasks/speech/data/clip_reader.h"
#include "train/tasks/speech/data/clip_source.h"
#include "train/tasks/speech/data/skipped_clips.h"
#include "train/tasks/speech/features/feature_cache.h"
#include "train/tasks/speech/features/featurizer.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

constexpr double kNoiseLimit = 1e6;             // seconds; the maximum duration of a noise recording
constexpr std::uint64_t kLargestBatchSeed = 1;  // seed of the noise in largest()
constexpr std::int64_t kLooked = 256;           // clips whose tokens are counted, the longest ones

ManifestOptions options_of(const RecordingSettings& settings) {
  return {.min_duration = settings.min_duration,
          .max_duration = settings.max_duration,
          .bad = settings.bad_clips,
          .text_field = settings.text_field,
          .lang_field = settings.lang_field};
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

std::string count_text(std::int64_t number) { return grouped(static_cast<double>(number)); }

// The files of a run's recordings, and the settings that apply to them.
struct RecordingFiles {
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

class Recordings : public ClipSource {
 public:
  explicit Recordings(RecordingFiles files)
      : files_(std::move(files)),
        reader_(files_.tokenizer, files_.features, files_.settings, files_.noise ? &*files_.noise : nullptr,
                files_.head, files_.seed),
        plan_(std::make_shared<const LengthBuckets>([this](std::int64_t sample) { return cost(sample); },
                                                    budget_of(files_.settings, files_.rows),
                                                    files_.settings.bucket_buffer_size)),
        longest_(find_longest()) {}

  // Opens data.cache_features, if it is set, and lists the lines that the manifests skip.
  Status start() {
    if (files_.settings.cache_features) {
      auto cache = FeatureCache::open(*files_.settings.cache_features, files_.features, files_.tables);
      if (!cache.ok())
        return Status(cache.status().code(), "data.cache_features: " + cache.status().message());
      cache_ = std::move(*cache);
      featurizer_.emplace(files_.features, torch::Device(torch::kCPU), files_.tables);
    }
    for (const Manifest* each : {&files_.train, &files_.validation}) {
      for (std::int64_t i = 0; i < each->report().left_out(); ++i) {
        RETURN_IF_ERROR(skipped_.add(each->left_out(i)));
      }
    }
    return {};
  }

  [[nodiscard]] std::int64_t samples() const override { return files_.train.size(); }
  [[nodiscard]] std::int64_t validation_samples() const override {
    return files_.most_evaluated < 0 ? files_.validation.size()
                                     : std::min(files_.validation.size(), files_.most_evaluated);
  }

  [[nodiscard]] nlohmann::ordered_json record() const override {
    const auto of = [](const Manifest& manifest) -> nlohmann::ordered_json {
      return {{"clips", manifest.size()}, {"fingerprint", manifest.fingerprint()}};
    };
    return {{"train", of(files_.train)},
            {"validation", of(files_.validation)},
            {"tokenizer", hash_of(std::as_bytes(std::span(files_.tokenizer.bytes())))}};
  }

  [[nodiscard]] DataChange compare(const nlohmann::ordered_json& record) const override {
    DataChange out;
    const nlohmann::ordered_json now = this->record();
    const auto look = [&](const char* name, const char* key) {
      const auto &before = record.at(name), &after = now.at(name);
      if (before.at("fingerprint") == after.at("fingerprint")) return;
      const auto clips = [](const auto& of) {
        return count_text(of.at("clips").template get<std::int64_t>());
      };
      out.changed.push_back(std::string(key) + ": it had " + clips(before) + " clips, and has " +
                            (clips(before) == clips(after) ? "others" : clips(after)));
    };
    look("train", "data.train_manifest");
    look("validation", "data.val_manifest");
    if (record.at("tokenizer") != now.at("tokenizer"))
      out.changed.push_back("model.tokenizer: the tokenizer was another one");
    return out;
  }

  [[nodiscard]] std::shared_ptr<const Batches> batches() const override { return plan_; }

  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override {
    return batch_of(plan_->draws(order, first, rows),
                    [&](std::uint64_t draw) { return clip(files_.train, order.sample(draw), draw); });
  }

  [[nodiscard]] Batch largest(const Order& order, std::int64_t rows) const override {
    return of_noise(longest_, order, most_rows(rows));
  }

  [[nodiscard]] Batch largest_to_evaluate(const Order& order, std::int64_t rows) const override {
    return of_noise(size_of(longest_of(files_.validation)), order, rows);
  }

  // Returns validation clips that are spread evenly over the validation set.
  [[nodiscard]] Batch validation(std::int64_t first, std::int64_t rows) const override {
    const std::int64_t all = files_.validation.size(), taken = validation_samples();
    std::vector<std::uint64_t> numbers;
    for (std::int64_t i = first; i < first + rows; ++i)
      numbers.push_back(static_cast<std::uint64_t>(all / taken * i + all % taken * i / taken));
    return batch_of(numbers, [&](std::uint64_t number) {
      return clip(files_.validation, static_cast<std::int64_t>(number), std::nullopt);
    });
  }

  [[nodiscard]] std::string clip_name(std::uint64_t number) const override {
    const std::string path = files_.validation.entry(static_cast<std::int64_t>(number)).audio;
    return path.substr(path.rfind('/') + 1);
  }

  [[nodiscard]] std::string text(std::span<const std::int64_t> tokens) const override {
    return files_.tokenizer.decode(tokens);
  }
  [[nodiscard]] ClipSize longest() const override { return longest_; }

  [[nodiscard]] std::int64_t most_rows(std::int64_t rows) const override {
    if (files_.settings.batch_seconds)
      rows = std::min(rows, static_cast<std::int64_t>(*files_.settings.batch_seconds / longest_seconds()));
    if (files_.settings.batch_cells)
      rows = std::min(rows,
                      *files_.settings.batch_cells / (subsampled(longest_.frames) * (longest_.tokens + 1)));
    return std::max<std::int64_t>(rows, 1);
  }

  [[nodiscard]] TaskText describe() const override {
    const RecordingSettings& settings = files_.settings;
    TaskText out;
    out.introduction = {"to train on: " + files_.train.report().text(files_.train.options()),
                        "to evaluate on: " + files_.validation.report().text(files_.validation.options())};
    if (files_.noise)
      out.introduction.push_back("noise: " + files_.noise->report().text(files_.noise->options()));
    out.introduction.push_back(fmt::format("tokenizer: {}, {} tokens", files_.tokenizer.name(),
                                           count_text(files_.tokenizer.size())));
    if (skipped_.count() > 0)
      out.ending.push_back(
          fmt::format("{} clips were skipped{}", count_text(skipped_.count()),
                      skipped_.path().empty() ? "" : "; " + skipped_.path() + " lists them"));
    if (cache_) out.ending.push_back(cache_->text());
    out.start["data"] = fmt::format("{} recordings ({} hours)", count_text(samples()),
                                    significant(files_.train.report().seconds / 3600, 3));
    if (settings.max_duration > 1)
      out.memory_advice = {
          fmt::format("data.max_duration={0} (drops data: clips longer than {0} s are skipped)",
                      significant(settings.max_duration / 2, 4))};
    out.speed_advice = settings.batch_seconds ? "batch_seconds is " + significant(*settings.batch_seconds, 6)
                                              : "max_duration is " + significant(settings.max_duration, 4);
    out.length_key = {"data.max_duration", static_cast<std::int64_t>(settings.max_duration), 1};
    if (settings.batch_seconds) out.limits.push_back({"data.batch_seconds", *settings.batch_seconds});
    if (settings.batch_cells)
      out.limits.push_back({"data.batch_cells", static_cast<double>(*settings.batch_cells), true});
    out.limited_rows = most_rows(kNoLimit);
    return out;
  }
  Status set_run_folder(const std::string& folder) override { return skipped_.list_in(folder); }

  [[nodiscard]] const FeatureSettings* features() const override { return &files_.features; }
  [[nodiscard]] FeatureTables feature_tables() const override { return files_.tables; }
  [[nodiscard]] const Tokenizer* tokenizer() const override { return &files_.tokenizer; }

 private:
  struct Longest {
    double seconds;
    std::int64_t tokens = 0;
  };

  // Returns the batch of the clips that `read` returns for these draws. Skipped clips are omitted.
  template <class Read>
  Batch batch_of(const std::vector<std::uint64_t>& draws, const Read& read) const {
    std::vector<LoadedClip> clips;
    std::vector<std::uint64_t> read_draws;
    for (const std::uint64_t draw : draws) {
      std::optional<LoadedClip> one = read(draw);
      if (!one) continue;
      clips.push_back(std::move(*one));
      read_draws.push_back(draw);
    }
    Batch out = make_batch(files_.features, clips);
    out.draws = std::move(read_draws);
    return out;
  }

  // Returns the cost of a sample. Reads its line again only if the text matters.
  [[nodiscard]] ClipCost cost(std::int64_t sample) const {
    return reader_.cost(files_.train.duration(sample),
                        files_.settings.batch_cells ? files_.train.entry(sample).text : std::string());
  }

  // Returns the longest duration, and the most tokens among the kLooked longest recordings. Counting those is
  // enough, because the longest recordings have the longest texts.
  [[nodiscard]] Longest longest_of(const Manifest& manifest) const {
    std::vector<std::int64_t> indexes(static_cast<std::size_t>(manifest.size()));
    std::iota(indexes.begin(), indexes.end(), 0);
    const auto end = indexes.begin() + std::min(kLooked, manifest.size());
    std::partial_sort(indexes.begin(), end, indexes.end(),
                      [&](auto a, auto b) { return manifest.duration(a) > manifest.duration(b); });
    Longest out{manifest.duration(indexes.front())};
    for (auto each = indexes.begin(); each != end; ++each) {
      const std::vector<std::int64_t> tokens = files_.tokenizer.encode(manifest.entry(*each).text);
      out.tokens = std::max(out.tokens, static_cast<std::int64_t>(tokens.size()));
    }
    return out;
  }

  [[nodiscard]] ClipSize size_of(const Longest& clip) const {
    return {files_.features.frames(
                static_cast<std::int64_t>(clip.seconds * static_cast<double>(files_.features.sample_rate))),
            clip.tokens};
  }

  [[nodiscard]] ClipSize find_longest() const {
    Longest out = longest_of(files_.train);
    out.seconds = reader_.cost(out.seconds, "").seconds;
    if (files_.settings.batch_seconds) out.seconds = std::min(out.seconds, *files_.settings.batch_seconds);
    return size_of(out);
  }

  [[nodiscard]] double longest_seconds() const {
    return static_cast<double>(longest_.frames * files_.features.hop()) /
           static_cast<double>(files_.features.sample_rate);
  }

  // Returns a batch of synthetic noise of the given size. Reads no recording: errors in recordings are
  // reported when they are read for training.
  [[nodiscard]] Batch of_noise(const ClipSize& size, const Order& order, std::int64_t rows) const {
    LoadedClip one;
    one.samples.resize(static_cast<std::size_t>(size.frames * files_.features.hop()));
    for (std::size_t i = 0; i < one.samples.size(); ++i)
      one.samples[i] = 0.1F * normal_noise(kLargestBatchSeed, i);
    for (std::int64_t i = 0; i < size.tokens; ++i) one.tokens.push_back(i % files_.tokenizer.size());
    Batch out = make_batch(files_.features, std::vector<LoadedClip>(static_cast<std::size_t>(rows), one));
    for (std::int64_t i = 0; i < rows; ++i)
      out.draws.push_back(order.start() + static_cast<std::uint64_t>(i));
    return out;
  }

  // Returns the clip, or the reason why it is bad. With data.cache_features the clip has its features.
  [[nodiscard]] Result<LoadedClip> load(const ManifestEntry& entry, std::optional<std::uint64_t> draw) const {
    if (!cache_) return reader_.read(entry, draw);
    const CachedClip key{entry.audio, entry.offset, entry.duration};
    if (auto found = cache_->find(key)) {
      ASSIGN_OR_RETURN(auto tokens, reader_.tokens_of(entry));
      return LoadedClip{{}, std::move(tokens), std::move(*found)};
    }
    auto out = reader_.read(entry);
    if (!out.ok()) return out;
    const torch::NoGradGuard no_grad;
    const auto count = static_cast<std::int64_t>(out->samples.size());
    const torch::Tensor made =
        (*featurizer_)(torch::from_blob(out->samples.data(), {1, count}), std::span(&count, 1))
            .frames.contiguous();
    out->features.assign(made.const_data_ptr<float>(), made.const_data_ptr<float>() + made.numel());
    cache_->keep(key, out->features);
    return out;
  }

  // Returns the clip, or nullopt if it is bad and is skipped. Throws octavo::Error if it is bad and
  // data.bad_clips is error.
  [[nodiscard]] std::optional<LoadedClip> clip(const Manifest& manifest, std::int64_t index,
                                               std::optional<std::uint64_t> draw) const {
    const ManifestEntry entry = manifest.entry(index);
    auto read = load(entry, draw);
    if (read.ok()) return std::move(*read);
    const std::string why = read.status().message(), place = manifest.place(index);
    if (files_.settings.bad_clips == BadClips::error) {
      throw Error(Status::invalid(place + ": " + why +
                                  "; repair or remove it, or skip bad clips (data.bad_clips: skip)"));
    }
    if (Status bad = skipped_.add({place, entry.audio, why}); !bad.ok()) throw Error(bad);
    return std::nullopt;
  }

  RecordingFiles files_;
  std::optional<FeatureCache> cache_;     // data.cache_features
  std::optional<Featurizer> featurizer_;  // computes the features that the cache stores
  ClipReader reader_;
  std::shared_ptr<const LengthBuckets> plan_;
  ClipSize longest_;
  mutable SkippedClips skipped_;
};

}  // namespace

Result<std::unique_ptr<ClipSource>> open_recordings(const Settings& settings,
                                                    const SpeechModelSettings& model,
                                                    const SpeechArchive* origin) {
  if (!audio_built_in()) return probe_audio("data.train_manifest").status();
  const auto& keys = settings.task_settings.get<RecordingSettings>();
  ASSIGN_OR_RETURN(auto tokenizer, open_speech_tokenizer(settings, origin));
  if (tokenizer.size() != model.vocabulary) {
    return Status::invalid(fmt::format("model.vocab_size: got {}, but {} has {} tokens", model.vocabulary,
                                       tokenizer.name(), tokenizer.size()));
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
  auto out = std::make_unique<Recordings>(RecordingFiles{
      keys, std::move(tokenizer), features, std::move(tables), std::move(train), std::move(validation),
      std::move(noise), settings.data.max_eval_samples, model.head,
      static_cast<std::uint64_t>(settings.training.seed), settings.training.per_device_train_batch_size});
  RETURN_IF_ERROR(out->start());
  return std::unique_ptr<ClipSource>(std::move(out));
}

}  // namespace octavo_train
