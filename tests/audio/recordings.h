// Recordings for tests: sounds as functions of time, and files of them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <numbers>
#include <vector>

namespace octavo::train {

// A sine.
inline std::vector<float> tone(double hertz, double seconds, int rate, double loud = 0.5) {
  std::vector<float> samples(static_cast<std::size_t>(std::lround(seconds * rate)));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i] =
        static_cast<float>(loud * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate));
  }
  return samples;
}

}  // namespace octavo::train
