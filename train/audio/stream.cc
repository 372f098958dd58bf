// Reads a long recording in blocks; see audio.h.
// SPDX-License-Identifier: MIT
#include "train/audio/audio.h"
#include "train/audio/decoder.h"
#include "train/audio/resampler.h"
#include "train/base/status.h"

#include <algorithm>

namespace octavo_train {

struct AudioStream::State {
  State(Decoder opened, Resampler made) : decoder(std::move(opened)), resampler(std::move(made)) {}

  Decoder decoder;
  Resampler resampler;
  std::vector<float> piece, ready;  // decoded; at the requested rate, unread from `next` on
  std::size_t next = 0;
  bool ended = false;

  Status fill();
};

// Decodes one more block and resamples it to the requested rate, unless the file has ended.
Status AudioStream::State::fill() {
  constexpr std::int64_t frames = 1 << 14;
  ready.erase(ready.begin(), ready.begin() + static_cast<std::ptrdiff_t>(next));
  next = 0;
  piece.clear();
  RETURN_IF_ERROR(decoder.read(frames, piece));
  RETURN_IF_ERROR(resampler.add(piece, ready));
  if (static_cast<std::int64_t>(piece.size()) == frames) return {};
  ended = true;
  RETURN_IF_ERROR(decoder.check_end());
  return resampler.finish(ready);
}

AudioStream::AudioStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
AudioStream::AudioStream(AudioStream&& other) noexcept = default;
AudioStream& AudioStream::operator=(AudioStream&& other) noexcept = default;
AudioStream::~AudioStream() = default;

Result<AudioStream> AudioStream::open(const std::string& path, int rate, std::optional<int> channel) {
  if (rate < kLowestRate || rate > kHighestRate) {
    return Status::invalid(path + ": sample rate " + std::to_string(rate) + " was asked for, expected " +
                           std::to_string(kLowestRate) + " to " + std::to_string(kHighestRate));
  }
  Result<Decoder> decoder = Decoder::open(path, channel);
  if (!decoder.ok()) return decoder.status();
  Result<Resampler> resampler = Resampler::make(decoder->info().rate, rate);
  if (!resampler.ok()) return resampler.status();
  return AudioStream(std::make_unique<State>(std::move(*decoder), std::move(*resampler)));
}

const AudioInfo& AudioStream::source() const { return state_->decoder.info(); }

Result<std::size_t> AudioStream::read(std::span<float> samples) {
  std::size_t done = 0;
  while (done < samples.size()) {
    if (state_->next == state_->ready.size()) {
      if (state_->ended) break;
      RETURN_IF_ERROR(state_->fill());
      continue;
    }
    const std::size_t count = std::min(samples.size() - done, state_->ready.size() - state_->next);
    const auto from = state_->ready.begin() + static_cast<std::ptrdiff_t>(state_->next);
    std::copy_n(from, count, samples.begin() + static_cast<std::ptrdiff_t>(done));
    state_->next += count;
    done += count;
  }
  return done;
}

}  // namespace octavo_train
