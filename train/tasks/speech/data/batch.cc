// SPDX-License-Identifier: MIT
#include "train/tasks/speech/data/batch.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

using Names = ClipTensors;

std::span<const std::int64_t> numbers(const torch::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

// Returns a mask, bool [clips, length], that is true at the positions inside any of the clip's spans.
torch::Tensor covered(std::span<const Masks> masks, std::vector<MaskSpan> Masks::*which, std::int64_t length,
                      const torch::Device& device) {
  const auto clips = static_cast<std::int64_t>(masks.size());
  const auto each = static_cast<std::int64_t>((masks[0].*which).size());
  torch::Tensor bounds = torch::empty({2, clips, each, 1}, torch::kInt64);
  auto* to = bounds.data_ptr<std::int64_t>();
  for (const bool ends : {false, true}) {
    for (const Masks& clip : masks) {
      for (const MaskSpan& span : clip.*which) *to++ = ends ? span.end : span.start;
    }
  }
  bounds = to_device({{{"bounds", bounds}}, {}}, device).at("bounds");
  const torch::Tensor places =
      torch::arange(length, torch::TensorOptions().dtype(torch::kInt64).device(device));
  return ((places >= bounds[0]) & (places < bounds[1])).any(1);
}

}  // namespace

Batch make_batch(const GeneratorSettings& settings, const std::vector<ClipSpec>& specs, std::int64_t bands) {
  FeatureSettings features;
  features.features = bands;
  std::vector<LoadedClip> clips;
  for (const ClipSpec& spec : specs) {
    LoadedClip& clip = clips.emplace_back(LoadedClip{{}, spec.tokens, {}});
    clip.features.resize(static_cast<std::size_t>(spec.frames * bands));
    make_features(settings, spec, bands, clip.features);
  }
  Batch out = make_batch(features, clips);
  out.length = out.padded_length = 0;  // the log does not print the padding of generated clips
  return out;
}

Batch make_batch(const FeatureSettings& settings, std::span<const LoadedClip> clips) {
  const auto count = static_cast<std::int64_t>(clips.size());
  const bool made = !clips.empty() && !clips.front().features.empty();
  const auto bands = static_cast<std::size_t>(settings.features);
  std::size_t longest = 1, labels = 1;
  Batch out;
  for (const LoadedClip& clip : clips) {
    const std::size_t length = made ? clip.features.size() / bands : clip.samples.size();
    longest = std::max(longest, length);
    labels = std::max(labels, clip.tokens.size());
    out.length += static_cast<double>(length);
  }
  out.padded_length = static_cast<double>(clips.size() * longest);
  const auto width = static_cast<std::int64_t>(longest);
  const torch::Tensor input =
      made ? torch::zeros({count, width, settings.features}) : torch::zeros({count, width});
  const torch::Tensor targets = torch::zeros({count, static_cast<std::int64_t>(labels)}, torch::kInt64);
  const torch::Tensor lengths = torch::empty({3, count}, torch::kInt64);
  for (std::size_t i = 0; i < clips.size(); ++i) {
    const LoadedClip& clip = clips[i];
    const std::vector<float>& from = made ? clip.features : clip.samples;
    std::ranges::copy(from, input.data_ptr<float>() + i * longest * (made ? bands : 1));
    std::ranges::copy(clip.tokens, targets.data_ptr<std::int64_t>() + i * labels);
    const auto samples = static_cast<std::int64_t>(clip.samples.size());
    auto* const to = lengths.data_ptr<std::int64_t>() + i;
    to[0] = samples;
    to[count] = made ? static_cast<std::int64_t>(from.size() / bands) : settings.frames(samples);
    to[2 * count] = static_cast<std::int64_t>(clip.tokens.size());
  }
  out.host = {{Names::feature_lengths, lengths[1]}, {Names::target_lengths, lengths[2]}};
  out.tensors = {{made ? Names::features : Names::audio, input}, {Names::targets, targets}};
  out.tensors.insert(out.tensors.end(), out.host.begin(), out.host.end());
  out.host.emplace_back(Names::audio_lengths, lengths[0]);
  return out;
}

void check_batch(const Batch& batch, std::int64_t vocabulary) {
  const torch::Tensor &features = batch.at(Names::features), &targets = batch.at(Names::targets);
  const auto frames = numbers(batch.on_host(Names::feature_lengths)),
             labels = numbers(batch.on_host(Names::target_lengths));
  const auto rows = static_cast<std::size_t>(features.size(0));
  TORCH_CHECK(frames.size() == rows && labels.size() == rows && targets.size(0) == features.size(0),
              "speech: a batch has ", rows, " clips, ", targets.size(0), " transcripts, ", frames.size(),
              " lengths of clips and ", labels.size(), " of transcripts; expected as many of each");
  for (std::size_t i = 0; i < rows; ++i) {
    TORCH_CHECK(frames[i] >= 1 && frames[i] <= features.size(1), "speech: clip ", i, " of a batch has ",
                frames[i], " frames, expected 1 to ", features.size(1), ", those of its tensor");
    TORCH_CHECK(labels[i] >= 0 && labels[i] <= targets.size(1), "speech: clip ", i, " of a batch has ",
                labels[i], " labels, expected 0 to ", targets.size(1), ", those of its tensor");
    const auto row = numbers(targets[static_cast<std::int64_t>(i)].contiguous());
    for (const std::int64_t label : row.first(static_cast<std::size_t>(labels[i])))
      TORCH_CHECK(label >= 0 && label < vocabulary, "speech: clip ", i, " of a batch has the label ", label,
                  ", expected 0 to ", vocabulary - 1, ": the tokens of the model (model.vocab_size)");
  }
}

SpeechClips clips_of(const Batch& batch) { return clips_of(batch, batch.at(Names::features)); }

SpeechClips clips_of(const Batch& batch, torch::Tensor features) {
  return {std::move(features), batch.at(Names::feature_lengths), batch.at(Names::targets),
          numbers(batch.on_host(Names::feature_lengths)), numbers(batch.on_host(Names::target_lengths))};
}

bool has_audio(const Batch& batch) {
  return std::ranges::any_of(batch.tensors, [](const auto& each) { return each.first == Names::audio; });
}

std::span<const std::int64_t> audio_lengths(const Batch& batch) {
  return numbers(batch.on_host(Names::audio_lengths));
}

torch::Tensor padded_for_training(const torch::Tensor& features, std::int64_t longest,
                                  const FeatureSettings& settings) {
  const std::int64_t missing = settings.padded_frames(longest) - features.size(1);
  return missing > 0 ? torch::constant_pad_nd(features, {0, 0, 0, missing}) : features;
}

torch::Tensor masked(const torch::Tensor& features, std::span<const Masks> masks) {
  torch::Tensor out = features;
  if (masks.empty()) return out;
  if (!masks[0].time.empty())
    out = out.masked_fill(covered(masks, &Masks::time, out.size(1), out.device()).unsqueeze(2), 0);
  if (!masks[0].frequency.empty())
    out = out.masked_fill(covered(masks, &Masks::frequency, out.size(2), out.device()).unsqueeze(1), 0);
  return out;
}

}  // namespace octavo_train
