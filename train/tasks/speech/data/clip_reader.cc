// SPDX-License-Identifier: MIT
#include "train/tasks/speech/data/clip_reader.h"

#include "train/audio/audio.h"
#include "train/audio/perturb.h"
#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/base/utf8.h"
#include "train/nn/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace octavo_train {
namespace {

constexpr float kSilence = 1e-4F;  // a fraction of full scale (-80 dB); quieter clips count as silent

std::string seconds_text(double seconds) { return significant(seconds, 4) + " s"; }

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// Returns the first character that the tokenizer has no token for. Returns an empty text if every character
// alone has a token.
std::string unknown_character(const Tokenizer& tokenizer, std::string_view text) {
  while (!text.empty()) {
    const std::string_view one = text.substr(0, std::max<std::size_t>(utf8_length(text), 1));
    if (std::ranges::any_of(tokenizer.encode(one), [&](auto token) { return tokenizer.is_unknown(token); }))
      return std::string(one);
    text.remove_prefix(one.size());
  }
  return {};
}

}  // namespace

ClipReader::ClipReader(const Tokenizer& tokenizer, const FeatureSettings& features,
                       const RecordingSettings& settings, const Manifest* noise, SpeechHead head,
                       std::uint64_t seed)
    : tokenizer_(tokenizer),
      features_(features),
      settings_(settings),
      noise_(noise),
      head_(head),
      seed_(seed) {}

double ClipReader::speed(std::optional<std::uint64_t> draw) const {
  return !draw || settings_.speed_perturb.empty() ? 1 : draw_speed(settings_.speed_perturb, {seed_, *draw});
}

ClipCost ClipReader::cost(double duration, std::int64_t tokens) const {
  const double slowest = settings_.speed_perturb.empty() ? 1 : std::ranges::min(settings_.speed_perturb);
  const double seconds = duration / slowest;
  const auto samples = static_cast<std::int64_t>(seconds * static_cast<double>(features_.sample_rate) + 0.5);
  return {seconds, subsampled(features_.frames(samples)) * (tokens + 1)};
}

ClipCost ClipReader::cost(double duration, const std::string& text) const {
  return cost(duration, text.empty() ? 0 : static_cast<std::int64_t>(tokenizer_.encode(text).size()));
}

Result<std::vector<std::int64_t>> ClipReader::tokens(const std::string& text) const {
  if (is_blank(text)) return Status::invalid("its text is empty");
  std::vector<std::int64_t> out = tokenizer_.encode(text);
  const auto unknown = [&](std::int64_t token) { return tokenizer_.is_unknown(token); };
  if (std::ranges::any_of(out, unknown)) {
    const std::string character = unknown_character(tokenizer_, text);
    return Status::invalid(fmt::format("its text has {} that the tokenizer ({}) has no token for: {}",
                                       character.empty() ? "something" : '"' + character + '"',
                                       tokenizer_.name(), text));
  }
  if (out.empty()) return Status::invalid("its text has no tokens: " + text);
  return out;
}

Status ClipReader::check_size(double duration, std::int64_t tokens) const {
  const ClipCost needs = cost(duration, tokens);
  const BatchBudget budget{std::nullopt, settings_.batch_seconds, settings_.batch_cells};
  if (settings_.has_budget() && !budget.fits(needs))
    return Status::invalid("it has " + budget.excess_text(needs));
  const std::int64_t frames = needs.cells / (tokens + 1);
  if (head_ == SpeechHead::ctc && tokens > frames) {
    return Status::invalid(
        fmt::format("its text has {} tokens for {} frames of the encoder: CTC needs one for each, so text or "
                    "duration is wrong",
                    tokens, frames));
  }
  return {};
}

// Throws if the noise cannot be read: this error ends the run, because it is not the fault of a clip.
Status ClipReader::add_noise_of(std::uint64_t draw, std::vector<float>& samples) const {
  if (noise_ == nullptr) return {};
  NoiseDraw drawn =
      draw_noise(noise_->size(), settings_.noise_snr.low, settings_.noise_snr.high, {seed_, draw});
  if (drawn.chance >= settings_.noise_prob) return {};
  const ManifestEntry entry = noise_->entry(drawn.clip);
  const double needed = static_cast<double>(samples.size()) / static_cast<double>(features_.sample_rate);
  const double taken = std::min(needed, entry.duration);
  auto noise = read_audio({.path = entry.audio,
                           .offset = entry.offset + drawn.start * (entry.duration - taken),
                           .seconds = taken,
                           .rate = static_cast<int>(features_.sample_rate)});
  if (!noise.ok()) {
    throw Error(Status(
        noise.status().code(),
        fmt::format("data.noise_manifest: {}: {}", noise_->place(drawn.clip), noise.status().message())));
  }
  drawn.start = 0;
  add_noise(samples, noise->samples, drawn);
  return {};
}

Result<std::vector<std::int64_t>> ClipReader::tokens_of(const ManifestEntry& entry) const {
  auto out = tokens(entry.text);
  if (!out.ok()) return out;
  RETURN_IF_ERROR(check_size(entry.duration, static_cast<std::int64_t>(out->size())));
  return out;
}

Result<LoadedClip> ClipReader::read(const ManifestEntry& entry, std::optional<std::uint64_t> draw) const {
  ASSIGN_OR_RETURN(auto tokens, tokens_of(entry));
  ASSIGN_OR_RETURN(auto clip, read_audio({.path = entry.audio,
                                          .offset = entry.offset,
                                          .seconds = entry.duration,
                                          .rate = static_cast<int>(features_.sample_rate),
                                          .speed = speed(draw)}));
  LoadedClip out{std::move(clip.samples), std::move(tokens), {}};
  const auto count = static_cast<std::int64_t>(out.samples.size());
  if (features_.frames(count) < kFewestFrames) {
    return Status::invalid(fmt::format("{}: has {} samples, fewer than the {} of {} frames", entry.audio,
                                       count, kFewestFrames * features_.hop(), kFewestFrames));
  }
  if (std::ranges::none_of(out.samples, [](float x) { return std::abs(x) >= kSilence; }))
    return Status::invalid(fmt::format("{}: is silent from {} to {}", entry.audio, seconds_text(entry.offset),
                                       seconds_text(entry.offset + entry.duration)));
  if (draw) {
    RETURN_IF_ERROR(add_noise_of(*draw, out.samples));
  }
  return out;
}

}  // namespace octavo_train
