// SPDX-License-Identifier: MIT
#include "train/tasks/speech/features/featurizer.h"

#include "train/task.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

torch::Tensor tensor_of(std::vector<float>& values, at::IntArrayRef sizes) {
  return torch::from_blob(values.data(), sizes, torch::kFloat32).clone();
}

// Returns the lengths in samples and in frames, int64 [2, clips], on the device. They are copied together and
// without waiting for the device.
torch::Tensor lengths_there(const FeatureSettings& settings, std::span<const std::int64_t> samples,
                            const torch::Device& device) {
  const auto clips = static_cast<std::int64_t>(samples.size());
  const torch::Tensor both = torch::empty({2, clips}, torch::kInt64);
  auto* to = both.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < clips; ++i) {
    to[i] = samples[static_cast<std::size_t>(i)];
    to[clips + i] = settings.frames(to[i]);
  }
  return to_device({{{"lengths", both}}, {}}, device).at("lengths");
}

}  // namespace

Featurizer::Featurizer(const FeatureSettings& settings, const torch::Device& device, FeatureTables tables)
    : settings_(settings), device_(device) {
  const Status fits = check_features(settings);
  TORCH_CHECK(fits.ok(), fits.message());
  FeatureTables made = make_feature_tables(settings);
  if (tables.window.empty()) tables.window = std::move(made.window);
  if (tables.filters.empty()) tables.filters = std::move(made.filters);
  const std::int64_t window = settings.window(), bins = settings.bins();
  TORCH_CHECK(static_cast<std::int64_t>(tables.window.size()) == window, "features: the window has ",
              tables.window.size(), " numbers, expected ", window);
  TORCH_CHECK(static_cast<std::int64_t>(tables.filters.size()) == settings.features * bins,
              "features: the filters have ", tables.filters.size(), " numbers, expected ", settings.features,
              " bands of ", bins);
  const std::int64_t left = (settings.n_fft - window) / 2;
  tables_ = make_mel_tables(
      torch::constant_pad_nd(tensor_of(tables.window, {window}), {left, settings.n_fft - window - left}),
      tensor_of(tables.filters, {settings.features, bins}), device);
}

Features Featurizer::compute(const torch::Tensor& audio, std::span<const std::int64_t> samples,
                             const DropoutKey& pass, double dither) const {
  TORCH_CHECK(
      audio.dim() == 2 && audio.size(0) == static_cast<std::int64_t>(samples.size()) && !samples.empty(),
      "features: the audio is ", audio.sizes(), ", expected [", samples.size(), ", samples]");
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    TORCH_CHECK(samples[i] >= settings_.hop() && samples[i] <= audio.size(1), "features: clip ", i, " has ",
                samples[i], " samples, expected ", settings_.hop(), " (a frame) to ", audio.size(1));
    longest = std::max(longest, samples[i]);
  }
  const torch::Tensor lengths = lengths_there(settings_, samples, audio.device());
  const MelOptions options{settings_.hop(), settings_.preemph, settings_.log_zero_guard_value, dither};
  return {mel_features(audio, lengths[0], settings_.frames(longest), tables_, options, pass), lengths[1]};
}

Features Featurizer::operator()(const torch::Tensor& audio, std::span<const std::int64_t> samples) const {
  return compute(audio, samples, {}, 0);
}

Features Featurizer::operator()(const torch::Tensor& audio, std::span<const std::int64_t> samples,
                                const DropoutKey& pass) const {
  return compute(audio, samples, pass, settings_.dither);
}

}  // namespace octavo_train
