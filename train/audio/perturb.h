// Perturbations of recordings while training: another speed, and noise behind the voice. Which ones a draw
// gets depends on (seed, draw) alone: not on the batch, the thread, or the number of processes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

namespace octavo::train {

// What identifies a draw.
struct PerturbKey {
  std::uint64_t seed = 0, draw = 0;
};

// One of the speeds, all equally likely; for AudioRequest::speed. REQUIRES: not empty.
double draw_speed(std::span<const double> speeds, const PerturbKey& key);

struct NoiseDraw {
  std::int64_t clip = 0;  // 0 … clips - 1
  double snr = 0;         // dB: the clip's power over the noise's
  double start = 0;       // where in the noise it begins, as a share of it: below 1
  double chance = 0;      // below 1; where only some draws get noise, those below their share do
};

// REQUIRES: clips >= 1, lowest <= highest.
NoiseDraw draw_noise(std::int64_t clips, double lowest_snr, double highest_snr, const PerturbKey& key);

// Adds the noise from its start on, again from its beginning as often as the clip needs it. A silent clip or
// a silent noise adds nothing: there is no ratio.
void add_noise(std::span<float> samples, std::span<const float> noise, const NoiseDraw& drawn);

}  // namespace octavo::train
