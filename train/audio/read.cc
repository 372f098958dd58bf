// Reads clips, and resamples them with soxr; see audio.h.
// SPDX-License-Identifier: MIT
#include "train/audio/audio.h"

#include "train/audio/decoder.h"
#include "train/base/numbers.h"
#include "train/base/status.h"

#include <fmt/format.h>
#include <soxr.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

// Returns ceil(samples * to / from). The 1e-6 absorbs rounding: 44,100 samples at 44.1 kHz are exactly 16,000
// at 16 kHz.
std::int64_t resampled_count(std::int64_t samples, double from, double to) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(samples) * to / from - 1e-6));
}

// Resamples a stream of samples with soxr's HQ filter.
class Resampler {
 public:
  // REQUIRES: both > 0.
  static Result<Resampler> make(double from, double to) {
    Resampler made(from, to);
    if (from == to) return made;
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    const soxr_runtime_spec_t threads = soxr_runtime_spec(1);  // clips are already read by many threads
    soxr_error_t error = nullptr;
    made.state_.reset(soxr_create(from, to, 1, &error, nullptr, &quality, &threads));
    if (error != nullptr) {
      return failed_error("cannot resample from {} to {} Hz: {}", from, to, error);
    }
    return made;
  }

  // Appends the output that is ready. soxr delays some output until later calls.
  Status add(std::span<const float> samples, std::vector<float>& out) {
    added_ += static_cast<std::int64_t>(samples.size());
    if (state_ != nullptr) return process(samples.data(), samples.size(), out);
    out.insert(out.end(), samples.begin(), samples.end());
    return {};
  }

  // Appends the rest, so that the total appended is resampled_count() of the total added.
  Status finish(std::vector<float>& out) {
    if (state_ == nullptr) return {};
    if (added_ > 0) {
      RETURN_IF_ERROR(process(nullptr, 0, out));
    }
    // soxr's total is within one sample of this count.
    const std::int64_t all = resampled_count(added_, from_, to_);
    out.resize(static_cast<std::size_t>(
        std::max<std::int64_t>(static_cast<std::int64_t>(out.size()) + all - given_, 0)));
    given_ = all;
    return {};
  }

 private:
  struct Delete {
    void operator()(soxr_t state) const { soxr_delete(state); }
  };
  Resampler(double from, double to) : from_(from), to_(to) {}

  // `samples` == nullptr marks the end of the input.
  Status process(const float* samples, std::size_t count, std::vector<float>& out) {
    do {
      const std::size_t before = out.size();
      const auto room = static_cast<std::size_t>(static_cast<double>(count) * to_ / from_) + 1024;
      out.resize(before + room);
      std::size_t used = 0, made = 0;
      const soxr_error_t error =
          soxr_process(state_.get(), samples, count, &used, out.data() + before, room, &made);
      out.resize(before + made);
      if (error != nullptr) return failed_error("{}{}", "cannot resample: ", error);
      given_ += static_cast<std::int64_t>(made);
      if (samples == nullptr && made < room) break;
      if (samples != nullptr) {
        samples += used;
        count -= used;
        if (count == 0 && made < room) break;
      }
    } while (true);
    return {};
  }

  double from_, to_;
  std::unique_ptr<soxr, Delete> state_;  // null if from == to
  std::int64_t added_ = 0, given_ = 0;
};

constexpr std::int64_t kPieceFrames = 1 << 16;

Status check_request(const AudioRequest& request) {
  const auto bad = [&](const std::string& what, double value, const std::string& limit) {
    return invalid_error("{}: {} is {}, expected {}", request.path, what,
                         decimal_text(value, std::chars_format::fixed, 6), limit);
  };
  if (!(request.offset >= 0 && request.offset < 1e9))
    return bad("offset", request.offset, "0 or more seconds");
  if (request.seconds && !(*request.seconds > 0 && *request.seconds < 1e9)) {
    return bad("duration", *request.seconds, "more than 0 seconds");
  }
  if (request.rate < kLowestRate || request.rate > kHighestRate) {
    return bad("sample rate", request.rate, fmt::format("{} to {}", kLowestRate, kHighestRate));
  }
  if (!(request.speed >= 0.1 && request.speed <= 10)) return bad("speed", request.speed, "0.1 to 10");
  return {};
}

std::string seconds_text(double seconds) {
  return decimal_text(std::round(seconds * 1000) / 1000, std::chars_format::fixed, 3) + " s";
}

// The requested part of the file, in frames of the file.
struct Part {
  std::int64_t first = 0, count = 0;
};

Result<Part> part_of(const AudioRequest& request, const AudioInfo& info) {
  const double offset = std::round(request.offset * info.rate);
  if (offset >= static_cast<double>(info.frames)) {
    return invalid_error("{}: offset {} is after its end, it has {} at {} Hz", request.path,
                         seconds_text(request.offset), seconds_text(info.seconds()), info.rate);
  }
  const auto first = static_cast<std::int64_t>(offset);
  const std::int64_t rest = info.frames - first;
  if (!request.seconds) return Part{first, rest};
  const double wanted = std::max(std::round(*request.seconds * info.rate), 1.0);
  if (wanted - static_cast<double>(rest) > kShortfallAllowed * info.rate) {
    return invalid_error(
        "{}: {} from {} on were asked for, it has {} at {} Hz: its duration or its sample rate is wrong",
        request.path, seconds_text(*request.seconds), seconds_text(request.offset),
        seconds_text(info.seconds()), info.rate);
  }
  return Part{first, std::min(static_cast<std::int64_t>(wanted), rest)};
}

Status read_part(const AudioRequest& request, Decoder& decoder, const Part& part,
                 std::vector<float>& samples) {
  const double from = decoder.info().rate * request.speed;
  const double to = request.rate;
  const std::int64_t count = resampled_count(part.count, from, to);
  if (std::max(count, part.count) > kLongestClip) {
    return invalid_error("{}: {} samples are more than a clip's {}; read it in parts, by offset and duration",
                         request.path, std::max(count, part.count), kLongestClip);
  }
  RETURN_IF_ERROR(decoder.seek(part.first));
  ASSIGN_OR_RETURN(Resampler resampler, Resampler::make(from, to));
  // The header's frame count may be wrong, so memory grows with the decoded samples.
  samples.reserve(static_cast<std::size_t>(std::min(count + 1024, 64 * kPieceFrames)));
  std::vector<float> piece;
  for (std::int64_t left = part.count; left > 0;) {
    piece.clear();
    const std::int64_t asked = std::min(left, kPieceFrames);
    RETURN_IF_ERROR(decoder.read(asked, piece));
    RETURN_IF_ERROR(resampler.add(piece, samples));
    left -= static_cast<std::int64_t>(piece.size());
    if (static_cast<std::int64_t>(piece.size()) < asked) {
      RETURN_IF_ERROR(decoder.check_end());
      break;
    }
  }
  return resampler.finish(samples);
}

}  // namespace

bool audio_built_in() { return true; }

Result<AudioInfo> probe_audio(const std::string& path) {
  ASSIGN_OR_RETURN(const Decoder decoder, Decoder::open(path, std::nullopt));
  return decoder.info();
}

Result<AudioClip> read_audio(const AudioRequest& request) {
  RETURN_IF_ERROR(check_request(request));
  ASSIGN_OR_RETURN(Decoder decoder, Decoder::open(request.path, request.channel));
  ASSIGN_OR_RETURN(const Part part, part_of(request, decoder.info()));
  AudioClip clip{{}, decoder.info()};
  RETURN_IF_ERROR(read_part(request, decoder, part, clip.samples));
  return clip;
}

std::vector<float> resampled(std::span<const float> samples, double from, double to) {
  std::vector<float> out;
  Resampler resampler = Resampler::make(from, to).value();
  if (Status status = resampler.add(samples, out); !status.ok()) throw Error(status);
  if (Status status = resampler.finish(out); !status.ok()) throw Error(status);
  return out;
}

}  // namespace octavo_train
