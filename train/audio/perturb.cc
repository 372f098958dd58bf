// See perturb.h.
// SPDX-License-Identifier: MIT
#include "train/audio/perturb.h"

#include "train/data/mix.h"

#include <cmath>
#include <cstddef>

namespace octavo_train {
namespace {

// These constants make the two random streams differ from each other and from other streams of the same seed.
constexpr std::uint64_t kSpeed = 0x5370656564212121, kNoise = 0x4E6F697365212121;

std::uint64_t mixed(const PerturbKey& key, std::uint64_t purpose) {
  return mix(mix((key.seed ^ purpose) + kGoldenGamma) + key.draw);
}

// Returns the mean of the squares.
double power(std::span<const float> samples) {
  double sum = 0;
  for (const float x : samples) sum += static_cast<double>(x) * static_cast<double>(x);
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

}  // namespace

double draw_speed(std::span<const double> speeds, const PerturbKey& key) {
  return speeds[static_cast<std::size_t>(share_of(mixed(key, kSpeed), 1) *
                                         static_cast<double>(speeds.size()))];
}

NoiseDraw draw_noise(std::int64_t clips, double lowest_snr, double highest_snr, const PerturbKey& key) {
  const std::uint64_t number = mixed(key, kNoise);
  NoiseDraw drawn;
  drawn.clip = static_cast<std::int64_t>(share_of(number, 1) * static_cast<double>(clips));
  drawn.snr = lowest_snr + share_of(number, 2) * (highest_snr - lowest_snr);
  drawn.start = share_of(number, 3);
  drawn.chance = share_of(number, 4);
  return drawn;
}

void add_noise(std::span<float> samples, std::span<const float> noise, const NoiseDraw& drawn) {
  const double voice = power(samples), other = power(noise);
  if (voice <= 0 || other <= 0) return;
  const auto scale = static_cast<float>(std::sqrt(voice / other) * std::pow(10.0, -drawn.snr / 20));
  auto at = static_cast<std::size_t>(drawn.start * static_cast<double>(noise.size()));
  for (float& x : samples) {
    x += scale * noise[at];
    if (++at == noise.size()) at = 0;
  }
}

}  // namespace octavo_train
