// Recordings: WAV, FLAC, OGG (Vorbis, Opus), MP3 and what else libsndfile reads, of any rate and number of
// channels, as mono samples at the rate that is asked for (soxr). All functions may be called from any number
// of threads. What is wrong with a file is a Status that names the file, the value and the reason; never a
// clip that is shorter than it should be.
//
// A build without the libraries has the same functions; they say what to install (none.cc).
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

// Whether this build reads recordings.
[[nodiscard]] bool audio_built_in();

inline constexpr int kLowestRate = 1000, kHighestRate = 768000;      // Hz, of a file
inline constexpr std::int64_t kLongestClip = std::int64_t{1} << 28;  // samples; 4.6 hours at 16 kHz
// How much sooner than asked a clip may end: durations are rounded in manifests, and MP3 has padding.
inline constexpr double kShortfallAllowed = 0.1;  // seconds

// What a file says of itself. `frames`: samples of one channel.
struct AudioInfo {
  std::int64_t frames = 0;
  int rate = 0, channels = 0;
  std::string format;  // "WAV", "FLAC", "OGG", "MP3", …
  [[nodiscard]] double seconds() const {
    return rate > 0 ? static_cast<double>(frames) / static_cast<double>(rate) : 0;
  }
};

// Reads the header, and checks as much as that shows: no samples, a file that is cut short (but for FLAC,
// where only reading shows it), a sample rate that contradicts the header's bytes per second.
Result<AudioInfo> probe_audio(const std::string& path);

struct AudioRequest {
  std::string path;
  double offset = 0;                             // seconds of the file
  std::optional<double> seconds = std::nullopt;  // of the file; none: to its end
  int rate = 16000;                              // of the clip
  std::optional<int> channel = std::nullopt;     // from 0; none: the mean of all
  double speed = 1;                              // 1.1: faster and higher, as a tape would play it
};

struct AudioClip {
  std::vector<float> samples;  // mono, full scale is 1
  AudioInfo source;
};

// A part of a long OGG (Vorbis) file costs the decoding of all before it. An error, too, where the file ends
// more than kShortfallAllowed before what was asked for.
Result<AudioClip> read_audio(const AudioRequest& request);

// A long file front to back, in memory of one block.
class AudioStream {
 public:
  static Result<AudioStream> open(const std::string& path, int rate = 16000,
                                  std::optional<int> channel = std::nullopt);

  AudioStream(AudioStream&& other) noexcept;
  AudioStream& operator=(AudioStream&& other) noexcept;
  ~AudioStream();

  [[nodiscard]] const AudioInfo& source() const;

  // The next samples; fewer than asked for only at the end, 0 after it. The samples are those of
  // read_audio().
  Result<std::size_t> read(std::span<float> samples);

 private:
  struct State;
  explicit AudioStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// By the extension: .wav (16 bits), .flac, .ogg, .mp3. Samples beyond full scale are clipped. The file
// appears under its name when it is whole.
Status write_audio(const std::string& path, std::span<const float> samples, int rate);

// ceil(samples * to / from) samples, by soxr's HQ filter, as librosa does.
// REQUIRES: audio_built_in(), from > 0, to > 0.
std::vector<float> resampled(std::span<const float> samples, double from, double to);

}  // namespace octavo::train
