// Threads examine single clips. Their findings are merged afterwards in the order of the lines, so that the
// result does not depend on thread timing.
// SPDX-License-Identifier: MIT
#include "apps/octavo/recordings/survey.h"

#include "train/audio/audio.h"
#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/base/utf8.h"
#include "train/data/mix.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <unordered_map>

namespace octavo::recordings {
namespace {

using octavo_train::fixed;
using octavo_train::ManifestEntry;

struct ClipFacts {
  float peak = 0, level = 0, clipped = 0;  // clipped: share of the samples
  double seconds = 0, file_seconds = 0;
  std::uint64_t samples_hash = 0;
  int rate = 0, channels = 0;
  std::int32_t tokens = 0;
  std::string format;  // short enough to need no heap memory
  std::unique_ptr<std::string> error, unknown;
};

float decibels(double amplitude) { return static_cast<float>(20 * std::log10(std::max(amplitude, 1e-6))); }

std::uint64_t hash_of(std::span<const float> samples) {
  std::uint64_t out = samples.size();
  for (const float each : samples)
    out = octavo_train::mix(out ^ static_cast<std::uint64_t>(std::lround(each * 32768.0F) + 65536));
  return out;
}

void measure(std::span<const float> samples, ClipFacts& out) {
  double sum = 0, peak = 0;
  std::size_t clipped = 0;
  for (const float each : samples) {
    const double size = std::abs(static_cast<double>(each));
    sum += size * size;
    peak = std::max(peak, size);
    if (size >= kClippedLevel) ++clipped;
  }
  const double count = std::max<double>(1, static_cast<double>(samples.size()));
  out.peak = static_cast<float>(peak);
  out.level = static_cast<float>(std::sqrt(sum / count));
  out.clipped = static_cast<float>(static_cast<double>(clipped) / count);
  out.samples_hash = hash_of(samples);
}

template <class Use>
void for_each_character(std::string_view text, Use use) {
  while (!text.empty()) {
    const std::size_t length = std::max<std::size_t>(1, octavo_train::utf8_length(text));
    use(text.substr(0, length));
    text.remove_prefix(length);
  }
}

std::string unknown_in(const octavo_train::Tokenizer& tokenizer, const std::string& text) {
  std::string out;
  for_each_character(text, [&](std::string_view each) {
    if (out.find(each) != std::string::npos) return;
    const auto tokens = tokenizer.encode(each);
    if (std::ranges::any_of(tokens, [&](std::int64_t token) { return tokenizer.is_unknown(token); }))
      out += each;
  });
  return out;
}

// Decodes the recording at its own rate, because resampling would change the peaks.
ClipFacts look_at(const ManifestEntry& entry, const SurveyOptions& plan) {
  ClipFacts out;
  const auto info = octavo_train::probe_audio(entry.audio);
  if (!info.ok()) {
    out.error = std::make_unique<std::string>(info.status().message());
    return out;
  }
  const auto clip = octavo_train::read_audio(
      {.path = entry.audio, .offset = entry.offset, .seconds = entry.duration, .rate = info->rate});
  if (!clip.ok()) {
    out.error = std::make_unique<std::string>(clip.status().message());
    return out;
  }
  out.rate = info->rate;
  out.channels = info->channels;
  out.format = info->format;
  out.file_seconds = info->seconds();
  out.seconds = static_cast<double>(clip->samples.size()) / info->rate;
  measure(clip->samples, out);
  if (plan.tokenizer == nullptr) return out;
  const auto tokens = plan.tokenizer->encode(entry.text);
  out.tokens = static_cast<std::int32_t>(tokens.size());
  if (std::ranges::any_of(tokens, [&](std::int64_t token) { return plan.tokenizer->is_unknown(token); }))
    out.unknown = std::make_unique<std::string>(unknown_in(*plan.tokenizer, entry.text));
  return out;
}

class Collector {
 public:
  Collector(const octavo_train::Manifest& manifest, const SurveyOptions& plan, Survey& out)
      : manifest_(manifest), plan_(plan), out_(out) {}

  // Records where the clips of a recording end. REQUIRES: called for all clips before the first add().
  void reach(const ManifestEntry& entry) {
    double& end = ends_[entry.audio];
    end = std::max(end, entry.offset + entry.duration);
  }

  void add(std::int64_t index, const ManifestEntry& entry, const ClipFacts& facts) {
    for_each_character(entry.text, [&](std::string_view each) { ++out_.characters[std::string(each)]; });
    out_.durations.push_back(static_cast<float>(entry.duration));
    if (facts.error) return find(Kind::unreadable, index, entry, *facts.error);
    const auto count = [&](std::map<std::string, Amount>& in, const std::string& name) {
      ++in[name].clips;
      in[name].seconds += facts.seconds;
    };
    ++out_.decoded.clips;
    out_.decoded.seconds += facts.seconds;
    count(out_.rates, std::to_string(facts.rate) + " Hz");
    count(out_.formats, facts.format);
    count(out_.channels, std::to_string(facts.channels));
    if (entry.lang) count(out_.languages, *entry.lang);
    if (entry.speaker) count(out_.speakers, *entry.speaker);
    out_.levels.push_back(decibels(facts.level));
    out_.peaks.push_back(decibels(facts.peak));
    judge_sound(index, entry, facts);
    judge_text(index, entry, facts);
  }

 private:
  void judge_sound(std::int64_t index, const ManifestEntry& entry, const ClipFacts& facts) {
    if (static_cast<double>(facts.peak) < kSilentPeak)
      return find(Kind::silent, index, entry,
                  "the loudest sample is at " + fixed(decibels(facts.peak), 0) + " dBFS");
    if (static_cast<double>(facts.clipped) >= kClippedShare)
      find(Kind::clipped, index, entry,
           octavo_train::percent_text(facts.clipped) + " of the samples are at full scale");
    if (const double rest = facts.file_seconds - ends_[entry.audio]; rest > kMoreAudio) {
      ends_[entry.audio] = facts.file_seconds;  // report this only once
      find(Kind::more_audio, index, entry,
           "the recording has " + fixed(facts.file_seconds, 1) + " s, the last " + fixed(rest, 1) +
               " of them in no clip");
    }
    const auto [first, is_new] = by_samples_.try_emplace(facts.samples_hash, index);
    if (is_new) return;
    const bool same = manifest_.entry(first->second).text == entry.text;
    find(same ? Kind::twice : Kind::two_texts, index, entry,
         "the samples equal those of " + manifest_.place(first->second) +
             (same ? "" : ", but the text differs"));
  }

  void judge_text(std::int64_t index, const ManifestEntry& entry, const ClipFacts& facts) {
    if (entry.text.find_first_not_of(" \t") == std::string::npos)
      return find(Kind::no_text, index, entry, "the text is empty");
    std::int64_t characters = 0;
    for_each_character(entry.text, [&](std::string_view) { ++characters; });
    const double pace = static_cast<double>(characters) / entry.duration;
    out_.pace.push_back(static_cast<float>(pace));
    if (pace > kFastest)
      find(Kind::fast, index, entry,
           std::to_string(characters) + " characters in " + fixed(entry.duration, 2) +
               " s: " + fixed(pace, 0) + " a second");
    if (plan_.tokenizer == nullptr) return;
    out_.tokens.push_back(static_cast<float>(facts.tokens));
    if (!facts.unknown) return;
    for_each_character(*facts.unknown, [&](std::string_view each) { ++out_.unknown[std::string(each)]; });
    find(Kind::unknown, index, entry, "the tokenizer does not have: " + *facts.unknown);
  }

  void find(Kind kind, std::int64_t index, const ManifestEntry& entry, std::string reason) {
    Findings& all = out_.findings[static_cast<std::size_t>(kind)];
    if (++all.count <= static_cast<std::int64_t>(kListed))
      all.first.push_back({manifest_.place(index), entry.audio, std::move(reason)});
  }

  const octavo_train::Manifest& manifest_;
  const SurveyOptions& plan_;
  Survey& out_;
  std::unordered_map<std::uint64_t, std::int64_t> by_samples_;
  std::unordered_map<std::string, double> ends_;
};

// Adds the lines that the manifest skipped.
void add_skipped(const octavo_train::Manifest& manifest, Survey& out) {
  const octavo_train::ManifestReport& report = manifest.report();
  Findings& bad = out.findings[static_cast<std::size_t>(Kind::bad_line)];
  Findings& left = out.findings[static_cast<std::size_t>(Kind::left_out)];
  bad.count = report.bad;
  left.count = report.left_out() - report.bad;
  for (std::int64_t i = 0; i < report.left_out() && bad.first.size() + left.first.size() < 2 * kListed; ++i) {
    const octavo_train::SkippedClip clip = manifest.left_out(i);
    Findings& of = clip.audio.empty() ? bad : left;  // a line that is not an entry has no audio path
    if (of.first.size() < kListed) of.first.push_back({clip.place, clip.audio, clip.reason});
  }
}

}  // namespace

const KindWords& words_of(Kind kind) {
  static constexpr std::array<KindWords, kKinds> kWords{{
      {"bad lines", "The line is not an entry of a manifest.", true},
      {"unreadable", "The recording cannot be decoded, or ends before the clip does.", true},
      {"silent", "No sample is louder than -60 dBFS.", true},
      {"two texts", "Another clip has the same samples and a different text: one of the texts is wrong.",
       true},
      {"unknown characters", "The tokenizer has no token for them: the model cannot learn to write them.",
       true},
      {"no text", "A model learns to transcribe nothing in such a clip. That is right for noise alone.",
       false},
      {"too much text", "More characters than a person says in that time: is it the right text?", false},
      {"clipped", "Samples at full scale: it was recorded too loud.", false},
      {"twice", "The same samples with the same text: the clip counts twice.", false},
      {"more audio", "The recording goes on for a while after its last clip: is the duration right?", false},
      {"skipped", "A duration outside of --min-duration and --max-duration, or _skipme: not trained on.",
       false},
  }};
  return kWords[static_cast<std::size_t>(kind)];
}

std::int64_t Survey::serious() const {
  std::int64_t out = 0;
  for (std::size_t i = 0; i < kKinds; ++i)
    out += words_of(static_cast<Kind>(i)).serious ? findings[i].count : 0;
  return out;
}

Result<Survey> survey_recordings(std::span<const std::string> manifests, const SurveyOptions& plan,
                                 const std::function<void(std::int64_t, std::int64_t)>& advance) {
  std::vector<octavo_train::ManifestSource> sources;
  for (const std::string& path : manifests) sources.push_back({path});
  octavo_train::ManifestOptions options = plan.options;
  options.bad = octavo_train::BadClips::skip;
  ASSIGN_OR_RETURN(const auto manifest, octavo_train::Manifest::open(sources, options));
  const std::int64_t all = manifest.size();
  std::vector<ClipFacts> facts(static_cast<std::size_t>(all));
  const auto began = std::chrono::steady_clock::now();
  const Status looked = for_each_number(
      all, plan.threads, [&](std::int64_t done) { advance(done, all); },
      [&](std::int64_t i) {
        facts[static_cast<std::size_t>(i)] = look_at(manifest.entry(i), plan);
        return Status();
      });
  if (!looked.ok()) return looked;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  Survey out;
  out.manifest = manifest.report();
  add_skipped(manifest, out);
  Collector collector(manifest, plan, out);
  for (std::int64_t i = 0; i < all; ++i) collector.reach(manifest.entry(i));
  for (std::int64_t i = 0; i < all; ++i)
    collector.add(i, manifest.entry(i), facts[static_cast<std::size_t>(i)]);
  out.audio_seconds_per_second = out.decoded.seconds / std::max(1e-9, took.count());
  return out;
}

}  // namespace octavo::recordings
