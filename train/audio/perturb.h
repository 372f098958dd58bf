// Perturbs recordings during training: changes the speed and adds noise. The perturbation of a draw depends
// only on (seed, draw): not on the batch, the thread or the number of processes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

namespace octavo_train {

// Identifies a draw.
struct PerturbKey {
  std::uint64_t seed = 0, draw = 0;
};

// Returns one of the speeds, all equally likely, for AudioRequest::speed. REQUIRES: `speeds` is not empty.
double draw_speed(std::span<const double> speeds, const PerturbKey& key);

struct NoiseDraw {
  std::int64_t clip = 0;  // 0 … clips - 1
  double snr = 0;         // dB: the clip's power relative to the noise's
  double start = 0;       // position where the noise begins, as a fraction of its length in [0, 1)
  double chance = 0;      // in [0, 1); draws below a threshold get noise
};

// REQUIRES: clips >= 1, lowest <= highest.
NoiseDraw draw_noise(std::int64_t clips, double lowest_snr, double highest_snr, const PerturbKey& key);

// Adds the noise from its start position on, and repeats it from its beginning until the clip ends. A silent
// clip or silent noise is left unchanged, because there is no power ratio.
void add_noise(std::span<float> samples, std::span<const float> noise, const NoiseDraw& drawn);

}  // namespace octavo_train
