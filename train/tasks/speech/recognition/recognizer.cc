// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/recognizer.h"

#include "train/base/status.h"
#include "train/device/device.h"
#include "train/device/memory.h"
#include "train/model/model.h"
#include "train/nn/subsampling.h"
#include "train/optim/precision.h"
#include "train/tasks/speech/archive/weights.h"
#include "train/tasks/speech/features/featurizer.h"
#include "train/tasks/speech/model/speech_model.h"
#include "train/tasks/speech/recognition/greedy.h"
#include "train/tasks/speech/recognition/recognizer_files.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

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
  const Encoded encoded = model->encode(features.frames, features.lengths, {});
  return model->settings().head == SpeechHead::ctc
             ? decode_ctc(model->ctc_logits(encoded.frames), encoded.lengths)
             : decode_greedy(*model, encoded.frames, encoded.lengths,
                             {.max_symbols = model->settings().max_symbols});
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

Result<Recognizer> Recognizer::of(std::shared_ptr<SpeechModelImpl> model, Tokenizer tokenizer,
                                  const FeatureSettings& features, const RecognizerOptions& options) {
  ASSIGN_OR_RETURN(const auto device, choose_device(options.device));
  const ComputeType dtype = dtype_on(device, options);
  place_model(*model, device, dtype == ComputeType::bfloat16);
  model->eval();
  return Recognizer(std::unique_ptr<Parts>(
      new Parts{std::move(model), std::move(tokenizer), Featurizer(features, device), device, dtype, {}}));
}

std::vector<Transcription> Recognizer::hear(Clips clips) {
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

RecognizerInfo Recognizer::hearing() {
  return {[this](Clips clips) { return hear(clips); }, &parts_->tokenizer, rate(), frame_seconds()};
}

int Recognizer::rate() const { return static_cast<int>(parts_->featurizer.settings().sample_rate); }
double Recognizer::frame_seconds() const { return parts_->frame_seconds(); }
const Tokenizer& Recognizer::tokenizer() const { return parts_->tokenizer; }
std::string Recognizer::device_text() const { return octavo_train::device_text(parts_->device); }
double Recognizer::batch_seconds() const { return parts_->device.is_cuda() ? 1200 : 60; }
const std::vector<std::string>& Recognizer::notes() const { return parts_->notes; }

}  // namespace octavo_train
