// Reads and writes recordings. Every format of libsndfile (WAV, FLAC, OGG with Vorbis or Opus, MP3 and
// others), at any sample rate and with any number of channels, is returned as mono samples at the requested
// rate (resampled by soxr). All functions are thread-safe. An error is a Status that names the file, the
// value and the reason; a truncated file is an error and never returns a shorter clip.
//
// A build without the libraries has the same functions; they return an error that names the packages to
// install (none.cc).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

// Returns true if this build can read recordings.
[[nodiscard]] bool audio_built_in();

inline constexpr int kLowestRate = 1000, kHighestRate = 768000;      // Hz, of a file
inline constexpr std::int64_t kLongestClip = std::int64_t{1} << 28;  // samples; 4.6 hours at 16 kHz
// A clip may end this much earlier than requested, because manifests round durations and MP3 has padding.
inline constexpr double kShortfallAllowed = 0.1;  // seconds

// The properties in a file's header. `frames` is the number of samples of one channel.
struct AudioInfo {
  std::int64_t frames = 0;
  int rate = 0, channels = 0;
  std::string format;  // "WAV", "FLAC", "OGG", "MP3", …
  [[nodiscard]] double seconds() const {
    return rate > 0 ? static_cast<double>(frames) / static_cast<double>(rate) : 0;
  }
};

// Reads the header and checks what the header can show: that there are samples, that the file is not
// truncated (for FLAC only decoding shows that), and that the sample rate agrees with the header's bytes per
// second.
Result<AudioInfo> probe_audio(const std::string& path);

struct AudioRequest {
  std::string path;
  double offset = 0;                             // seconds from the start of the file
  std::optional<double> seconds = std::nullopt;  // length in the file; nullopt: to the file's end
  int rate = 16000;                              // Hz, of the returned clip
  std::optional<int> channel = std::nullopt;     // from 0; nullopt: the mean of all channels
  double speed = 1;  // playback speed; 1.1 is faster and higher in pitch, like a tape
};

struct AudioClip {
  std::vector<float> samples;  // mono, full scale is 1
  AudioInfo source;
};

// Reads a clip. An offset into an OGG Vorbis file is slow, because the file is decoded from its start.
// Returns an error if the file ends more than kShortfallAllowed before the requested end.
Result<AudioClip> read_audio(const AudioRequest& request);

// Writes a recording in the format of the path's extension: .wav (16 bits), .flac, .ogg or .mp3. Samples
// beyond full scale are clipped. The file appears under its name only when it is complete.
Status write_audio(const std::string& path, std::span<const float> samples, int rate);

// Returns ceil(samples * to / from) samples, resampled by soxr's HQ filter, as librosa does.
// REQUIRES: audio_built_in(), from > 0, to > 0.
std::vector<float> resampled(std::span<const float> samples, double from, double to);

}  // namespace octavo_train
