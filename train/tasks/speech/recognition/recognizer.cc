// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/recognizer.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/config/config.h"
#include "train/device/device.h"
#include "train/device/memory.h"
#include "train/formats/safetensors.h"
#include "train/model/model.h"
#include "train/nn/subsampling.h"
#include "train/optim/precision.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/run_model.h"
#include "train/tasks/speech/archive/weights.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/config/settings.h"
#include "train/tasks/speech/features/feature_tables.h"
#include "train/tasks/speech/features/featurizer.h"
#include "train/tasks/speech/model/speech_model.h"
#include "train/tasks/speech/recognition/greedy.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

// Holds what a Recognizer needs from files. A checkpoint of a run on recordings contains all of it
// (run_model.h).
struct RecognizerFiles {
  SpeechModelSettings model;
  FeatureSettings features;
  FeatureTables tables = {};  // from the archive; empty: computed from the settings
  Tokenizer tokenizer;
  std::string weights_from;                    // a path, for error messages
  std::vector<std::string> notes = {};         // which checkpoint was chosen, and which were skipped
  std::optional<SpeechArchive> archive = {};   // contains the weights if it is set
  std::optional<Safetensors> checkpoint = {};  // contains the weights otherwise

  [[nodiscard]] std::span<const StoredTensor> weights() const {
    return archive ? archive->tensors() : checkpoint->tensors();
  }
};

constexpr std::string_view kWeights = "model.safetensors", kConfig = "config.yaml";

// Returns true for a run's folder, even if it has no checkpoint yet, and for a checkpoint's folder.
bool is_run(const std::string& name) {
  return path_exists(name + "/checksums.txt") || path_exists(name + "/metrics.jsonl") ||
         !list_checkpoints(name).empty();
}

Status no_tokenizer(const std::string& checkpoint, const Settings& settings) {
  const bool generated = settings.task_settings.get<GeneratorSettings>().clips.has_value();
  return Status::invalid(
      checkpoint + ": the model has no tokenizer, so it cannot transcribe" +
      (generated ? ": it was trained on generated clips (data.generator); train one on recordings"
                 : "; the checkpoint should have " + std::string(kBundledTokenizer)));
}

// Opens a checkpoint without a model description (run_model.h), from the files that the run started with.
Result<RecognizerFiles> open_origin(const std::string& path, const Settings& settings, Safetensors weights) {
  ASSIGN_OR_RETURN(auto origin, open_pretrained_archive(settings));
  const SpeechArchive* const archive = origin.has_value() ? &*origin : nullptr;
  ASSIGN_OR_RETURN(auto model, speech_model_of(settings, archive));
  const std::string kept = path + '/' + std::string(kBundledTokenizer);
  if (!path_exists(kept) && archive == nullptr) return no_tokenizer(path, settings);
  ASSIGN_OR_RETURN(auto tokenizer,
                   path_exists(kept) ? Tokenizer::open(kept) : open_speech_tokenizer(settings, archive));
  ASSIGN_OR_RETURN(const auto features, speech_features_of(settings, archive, model));
  ASSIGN_OR_RETURN(auto tables, speech_tables_of(features, archive));
  return RecognizerFiles{.model = std::move(model),
                         .features = features,
                         .tables = std::move(tables),
                         .tokenizer = std::move(tokenizer),
                         .weights_from = path,
                         .checkpoint = std::move(weights)};
}

Result<RecognizerFiles> open_checkpoint(const std::string& path, const Settings& settings) {
  ASSIGN_OR_RETURN(auto weights, Safetensors::open(path + '/' + std::string(kWeights)));
  ASSIGN_OR_RETURN(auto kept, read_bundled_model(path));
  if (!kept.has_value()) return open_origin(path, settings, std::move(weights));
  ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::open(path + '/' + std::string(kBundledTokenizer)));
  return RecognizerFiles{.model = std::move(kept->model),
                         .features = kept->features,
                         .tokenizer = std::move(tokenizer),
                         .weights_from = path,
                         .checkpoint = std::move(weights)};
}

Result<RecognizerFiles> open_run(const std::string& name, const std::string& which) {
  constexpr std::array<std::string_view, 2> kNeeded = {kWeights, kConfig};
  ASSIGN_OR_RETURN(auto chosen, choose_checkpoint(name, which, kNeeded));
  ASSIGN_OR_RETURN(const auto config, load(chosen.path + '/' + std::string(kConfig)));
  if (config.settings.task != "speech") {
    return Status::invalid(
        fmt::format("{}: a model of the task {} cannot transcribe, expected one of the task speech", name,
                    config.settings.task));
  }
  auto out = open_checkpoint(chosen.path, config.settings);
  if (!out.ok()) return out;
  for (const std::string& reason : chosen.skipped) out->notes.push_back("warning: skipped " + reason);
  if (!chosen.why.empty()) out->notes.push_back(chosen.path + ": " + chosen.why);
  return out;
}

Result<RecognizerFiles> open_archive(const std::string& name) {
  ASSIGN_OR_RETURN(auto archive, SpeechArchive::open(name));
  ASSIGN_OR_RETURN(auto tokenizer, archive_tokenizer(archive));
  ASSIGN_OR_RETURN(auto tables, archive.feature_tables());
  return RecognizerFiles{.model = archive.settings(),
                         .features = archive.features(),
                         .tables = std::move(tables),
                         .tokenizer = std::move(tokenizer),
                         .weights_from = archive.path(),
                         .archive = std::move(archive)};
}

// Opens the files of `name`. See Recognizer::open() for both arguments.
Result<RecognizerFiles> open_recognizer_files(const std::string& name, const std::string& checkpoint) {
  const bool run = is_run(name);
  if (!run && !checkpoint.empty()) {
    return Status::invalid("--checkpoint: got " + checkpoint + ", but " + name + " is not a run's folder");
  }
  Result<RecognizerFiles> out = run ? open_run(name, checkpoint) : open_archive(name);
  if (!out.ok()) return out;
  if (out->tokenizer.size() == out->model.vocabulary) return out;
  return Status::invalid(fmt::format("{}: has {} tokens, but the model of {} has {}; it is of another model",
                                     out->tokenizer.name(), out->tokenizer.size(), out->weights_from,
                                     out->model.vocabulary));
}

using Clips = std::span<const std::span<const float>>;

ComputeType dtype_on(const torch::Device& device, const RecognizerOptions& options) {
  return options.dtype.value_or(device.is_cuda() ? ComputeType::bfloat16 : ComputeType::float32);
}

// Copies clips into a tensor [clips, samples of the longest clip], padded with zeros at the end.
torch::Tensor padded(Clips clips, const torch::Device& device) {
  std::size_t longest = 0;
  for (const auto& clip : clips) longest = std::max(longest, clip.size());
  const auto width = static_cast<std::int64_t>(longest);
  const auto options = torch::TensorOptions(torch::kFloat32).pinned_memory(device.is_cuda());
  torch::Tensor out = torch::empty({std::ssize(clips), width}, options);
  auto* const rows = out.data_ptr<float>();
  at::parallel_for(0, std::ssize(clips), 1, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) {
      float* const row = rows + i * width;
      std::fill(std::ranges::copy(clips[static_cast<std::size_t>(i)], row).out, row + width, 0.0F);
    }
  });
  return out.to(device, /*non_blocking=*/true);
}

}  // namespace

struct Recognizer::Parts {
  std::shared_ptr<SpeechModelImpl> model;
  Tokenizer tokenizer;
  Featurizer featurizer;
  torch::Device device;
  ComputeType dtype;
  std::vector<std::string> notes;

  [[nodiscard]] double frame_seconds() const {
    return featurizer.settings().window_stride * static_cast<double>(kSubsampling);
  }
  std::vector<Transcript> decode(Clips clips);
  std::vector<Transcript> decode_in_parts(Clips clips);
};

// Decodes one batch. REQUIRES: every clip has at least kFewestFrames frames.
std::vector<Transcript> Recognizer::Parts::decode(Clips clips) {
  const torch::NoGradGuard no_grad;
  const AutocastScope autocast(device, dtype);
  std::vector<std::int64_t> samples;
  for (const auto& clip : clips) samples.push_back(std::ssize(clip));
  const Features features = featurizer(padded(clips, device), samples);
  return decode_encoded(*model, model->encode(features.frames, features.lengths, {}));
}

// Decodes the clips in one batch, or, if they do not fit into memory, recursively in halves.
std::vector<Transcript> Recognizer::Parts::decode_in_parts(Clips clips) {
  try {
    return decode(clips);
  } catch (const c10::OutOfMemoryError&) {
    if (clips.size() < 2) throw;
  }
  release_cached_memory(device);
  std::vector<Transcript> out = decode_in_parts(clips.first(clips.size() / 2));
  for (Transcript& each : decode_in_parts(clips.subspan(clips.size() / 2))) out.push_back(std::move(each));
  return out;
}

Recognizer::Recognizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Recognizer::Recognizer(Recognizer&&) noexcept = default;
Recognizer& Recognizer::operator=(Recognizer&&) noexcept = default;
Recognizer::~Recognizer() = default;

Result<Recognizer> Recognizer::open(const std::string& name, const RecognizerOptions& options) {
  ASSIGN_OR_RETURN(const auto device, choose_device(options.device));
  ASSIGN_OR_RETURN(auto files, open_recognizer_files(name, options.checkpoint));
  const ComputeType dtype = dtype_on(device, options);
  auto model = std::make_shared<SpeechModelImpl>(files.model);
  place_model(*model, device, dtype == ComputeType::bfloat16);
  ASSIGN_OR_RETURN(const auto loaded, load_stored(files.weights_from, files.weights(), tensors_of(*model)));
  model->eval();
  return Recognizer(std::unique_ptr<Parts>(new Parts{
      std::move(model), std::move(files.tokenizer),
      Featurizer(files.features, device, std::move(files.tables)), device, dtype, std::move(files.notes)}));
}

Result<Recognizer> Recognizer::from_model(std::shared_ptr<SpeechModelImpl> model, Tokenizer tokenizer,
                                          const FeatureSettings& features, const RecognizerOptions& options) {
  ASSIGN_OR_RETURN(const auto device, choose_device(options.device));
  const ComputeType dtype = dtype_on(device, options);
  place_model(*model, device, dtype == ComputeType::bfloat16);
  model->eval();
  return Recognizer(std::unique_ptr<Parts>(
      new Parts{std::move(model), std::move(tokenizer), Featurizer(features, device), device, dtype, {}}));
}

std::vector<Transcription> Recognizer::transcribe(Clips clips) {
  const FeatureSettings& features = parts_->featurizer.settings();
  std::vector<std::span<const float>> long_enough;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < clips.size(); ++i) {
    if (features.frames(std::ssize(clips[i])) < kFewestFrames) continue;
    long_enough.push_back(clips[i]);
    places.push_back(i);
  }
  std::vector<Transcription> out(clips.size());
  if (long_enough.empty()) return out;
  std::vector<Transcript> found = parts_->decode_in_parts(long_enough);
  for (std::size_t i = 0; i < places.size(); ++i)
    out[places[i]] = make_transcription(std::move(found[i]), parts_->tokenizer, parts_->frame_seconds());
  return out;
}

RecognizerInfo Recognizer::info() {
  return {[this](Clips clips) { return transcribe(clips); }, &parts_->tokenizer, rate(), frame_seconds()};
}

int Recognizer::rate() const { return static_cast<int>(parts_->featurizer.settings().sample_rate); }
double Recognizer::frame_seconds() const { return parts_->frame_seconds(); }
const Tokenizer& Recognizer::tokenizer() const { return parts_->tokenizer; }
std::string Recognizer::device_text() const { return octavo_train::device_text(parts_->device); }
double Recognizer::batch_seconds() const { return parts_->device.is_cuda() ? 1200 : 60; }
const std::vector<std::string>& Recognizer::notes() const { return parts_->notes; }

}  // namespace octavo_train
