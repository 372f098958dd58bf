// Generates recordings for tests: synthetic sounds, and WAV files assembled byte by byte, so that any header
// field can be false.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/train/little.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

// Returns a sine wave.
inline std::vector<float> tone(double hertz, double seconds, int rate, double loud = 0.5) {
  std::vector<float> samples(static_cast<std::size_t>(std::lround(seconds * rate)));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i] =
        static_cast<float>(loud * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate));
  }
  return samples;
}

// Returns a tone that rises from `low` to `high`, so that no two parts of it are equal.
inline std::vector<float> sweep(double low, double high, double seconds, int rate) {
  std::vector<float> samples(static_cast<std::size_t>(std::lround(seconds * rate)));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double t = static_cast<double>(i) / rate;
    samples[i] = static_cast<float>(
        0.5 * std::sin(2 * std::numbers::pi * (low + (high - low) * t / (2 * seconds)) * t));
  }
  return samples;
}

// The fields of a WAV header; -1 writes the true value.
struct WavHeader {
  std::uint32_t rate = 16000, channels = 1;
  std::int64_t bytes_per_second = -1, data_bytes = -1;
  bool floats = false;  // 32-bit floats; else 16-bit integers
};

inline std::string wav_file(const WavHeader& header, const std::string& data) {
  const std::uint32_t frame = header.channels * (header.floats ? 4 : 2);
  const auto told = [](std::int64_t value, std::uint64_t truth) {
    return little(value < 0 ? truth : static_cast<std::uint64_t>(value), 4);
  };
  const std::string format = little(header.floats ? 3 : 1, 2) + little(header.channels, 2) +
                             little(header.rate, 4) +
                             told(header.bytes_per_second, std::uint64_t{header.rate} * frame) +
                             little(frame, 2) + little(header.floats ? 32 : 16, 2);
  const std::string body =
      "WAVEfmt " + little(format.size(), 4) + format + "data" + told(header.data_bytes, data.size()) + data;
  return "RIFF" + little(body.size(), 4) + body;
}

inline std::string wav_data(std::span<const std::int16_t> samples) {
  std::string text;
  for (const std::int16_t sample : samples) text += little(static_cast<std::uint16_t>(sample), 2);
  return text;
}

}  // namespace octavo_train
