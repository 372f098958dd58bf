// Reads clips; see audio.h.
// SPDX-License-Identifier: MIT
#include "train/audio/audio.h"

#include "train/audio/decoder.h"
#include "train/audio/resampler.h"
#include "train/base/numbers.h"
#include "train/base/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace octavo_train {
namespace {

constexpr std::int64_t kPieceFrames = 1 << 16;

Status check_request(const AudioRequest& request) {
  const auto bad = [&](const std::string& what, double value, const std::string& limit) {
    return Status::invalid(request.path + ": " + what + " is " +
                           decimal_text(value, std::chars_format::fixed, 6) + ", expected " + limit);
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
    return Status::invalid(fmt::format("{}: offset {} is behind its end, it has {} at {} Hz", request.path,
                                       seconds_text(request.offset), seconds_text(info.seconds()),
                                       info.rate));
  }
  const auto first = static_cast<std::int64_t>(offset);
  const std::int64_t rest = info.frames - first;
  if (!request.seconds) return Part{first, rest};
  const double wanted = std::max(std::round(*request.seconds * info.rate), 1.0);
  if (wanted - static_cast<double>(rest) > kShortfallAllowed * info.rate) {
    return Status::invalid(fmt::format(
        "{}: {} from {} on were asked for, it has {} at {} Hz: its duration or its sample rate is wrong",
        request.path, seconds_text(*request.seconds), seconds_text(request.offset),
        seconds_text(info.seconds()), info.rate));
  }
  return Part{first, std::min(static_cast<std::int64_t>(wanted), rest)};
}

Status read_part(const AudioRequest& request, Decoder& decoder, const Part& part,
                 std::vector<float>& samples) {
  const double from = decoder.info().rate * request.speed;
  const double to = request.rate;
  const std::int64_t count = resampled_count(part.count, from, to);
  if (std::max(count, part.count) > kLongestClip) {
    return Status::invalid(
        fmt::format("{}: {} samples are more than a clip's {}; read it in parts, by offset and duration",
                    request.path, std::max(count, part.count), kLongestClip));
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

}  // namespace octavo_train
