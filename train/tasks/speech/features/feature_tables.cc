// SPDX-License-Identifier: MIT
#include "train/tasks/speech/features/feature_tables.h"

#include "train/base/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace octavo_train {
namespace {

// Slaney's mel scale is linear up to 1,000 Hz and logarithmic above.
constexpr double kLinearHz = 200.0 / 3.0;  // Hz per mel
constexpr double kBreakHz = 1000.0, kBreakMel = kBreakHz / kLinearHz;
const double kLogStep = std::log(6.4) / 27.0;

double mel_of(double hz) {
  return hz < kBreakHz ? hz / kLinearHz : kBreakMel + std::log(hz / kBreakHz) / kLogStep;
}
double hz_of(double mel) {
  return mel < kBreakMel ? mel * kLinearHz : kBreakHz * std::exp(kLogStep * (mel - kBreakMel));
}

std::vector<float> hann_window(std::int64_t length) {
  std::vector<float> out(static_cast<std::size_t>(length), 1.0F);
  for (std::int64_t i = 0; length > 1 && i < length; ++i) {
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length - 1);
    out[static_cast<std::size_t>(i)] = static_cast<float>(0.5 - 0.5 * std::cos(angle));
  }
  return out;
}

std::vector<float> mel_filters(const FeatureSettings& settings) {
  const std::int64_t bands = settings.features, bins = settings.bins();
  const double low = mel_of(settings.lowfreq), high = mel_of(settings.highest());
  const auto edge = [&](std::int64_t i) {
    return hz_of(low + (high - low) * static_cast<double>(i) / static_cast<double>(bands + 1));
  };
  const double bin_hz = static_cast<double>(settings.sample_rate) / static_cast<double>(settings.n_fft);
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(bands * bins));
  for (std::int64_t band = 0; band < bands; ++band) {
    const double left = edge(band), middle = edge(band + 1), right = edge(band + 2);
    for (std::int64_t bin = 0; bin < bins; ++bin) {
      const double hz = static_cast<double>(bin) * bin_hz;
      const double height = std::min((hz - left) / (middle - left), (right - hz) / (right - middle));
      // Rounds twice to fp32, like librosa, which computes the reference's filters.
      const auto rounded = static_cast<float>(std::max(0.0, height));
      out.push_back(static_cast<float>(static_cast<double>(rounded) * (2.0 / (right - left))));
    }
  }
  return out;
}

Status refuse(const std::string& key, const std::string& got, const std::string& expected) {
  return Status::invalid("model.preprocessor." + key + ": got " + got + ", expected " + expected);
}

}  // namespace

Status check_features(const FeatureSettings& settings) {
  if (settings.hop() < 1)
    return refuse("window_stride", significant(settings.window_stride, 4), "at least one sample");
  if (settings.window() < 1 || settings.window() > settings.n_fft) {
    return refuse("window_size",
                  fmt::format("{} ({} samples)", significant(settings.window_size, 4), settings.window()),
                  fmt::format("from one sample to n_fft, which is {}", settings.n_fft));
  }
  if (settings.n_fft % 2 != 0) return refuse("n_fft", std::to_string(settings.n_fft), "an even number");
  const double half = static_cast<double>(settings.sample_rate) / 2;
  if (settings.highest() > half || settings.lowfreq >= settings.highest()) {
    return refuse("highfreq", significant(settings.highest(), 6),
                  fmt::format("more than lowfreq ({}) and at most half the rate ({})",
                              significant(settings.lowfreq, 6), significant(half, 6)));
  }
  return {};
}

FeatureTables make_feature_tables(const FeatureSettings& settings) {
  return {hann_window(settings.window()), mel_filters(settings)};
}

}  // namespace octavo_train
