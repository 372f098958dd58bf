// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/score.h"

#include "train/audio/audio.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace octavo_train {
namespace {

struct Stopped {};  // thrown to leave transcribe_all()

Result<std::vector<float>> samples_of(const Manifest& manifest, std::int64_t number, int rate) {
  const ManifestEntry entry = manifest.entry(number);
  auto clip =
      read_audio({.path = entry.audio, .offset = entry.offset, .seconds = entry.duration, .rate = rate});
  if (!clip.ok()) return clip.status();
  return std::move(clip->samples);
}

bool worse(const ScoredClip& a, const ScoredClip& b) {
  return std::tuple(-a.errors.errors(), a.errors.words, a.number) <
         std::tuple(-b.errors.errors(), b.errors.words, b.number);
}

}  // namespace

double WordErrors::rate() const {
  if (words > 0) return static_cast<double>(errors()) / static_cast<double>(words);
  return errors() == 0 ? 0.0 : std::numeric_limits<double>::infinity();
}

WordErrors& WordErrors::operator+=(const WordErrors& other) {
  substitutions += other.substitutions;
  deletions += other.deletions;
  insertions += other.insertions;
  words += other.words;
  return *this;
}

WordErrors count_errors(const std::vector<AlignedWord>& alignment) {
  WordErrors out;
  for (const AlignedWord& word : alignment) {
    out.substitutions += word.edit == Edit::substitution ? 1 : 0;
    out.deletions += word.edit == Edit::deletion ? 1 : 0;
    out.insertions += word.edit == Edit::insertion ? 1 : 0;
    out.words += word.edit == Edit::insertion ? 0 : 1;
  }
  return out;
}

WordErrors word_errors(std::string_view reference, std::string_view hypothesis) {
  return count_errors(align_words(reference, hypothesis));
}

void GroupScore::add(const WordErrors& more, double duration) {
  errors += more;
  ++clips;
  seconds += duration;
}

void Score::add(std::int64_t number, std::string place, const ManifestEntry& entry, std::string hypothesis) {
  const WordErrors errors = word_errors(entry.text, hypothesis);
  total_.add(errors, entry.duration);
  languages_[entry.lang].add(errors, entry.duration);
  speakers_[entry.speaker].add(errors, entry.duration);
  if (errors.errors() == 0 || most_worst_ == 0) return;
  ScoredClip clip{number, std::move(place), entry.audio, entry.text, std::move(hypothesis), errors};
  const auto at = std::ranges::upper_bound(worst_, clip, worse);
  if (at == worst_.end() && worst_.size() == most_worst_) return;
  worst_.insert(at, std::move(clip));
  if (worst_.size() > most_worst_) worst_.pop_back();
}

Score::Groups Score::named(const Groups& groups) {
  const bool none_says = groups.empty() || (groups.size() == 1 && !groups.begin()->first);
  return none_says ? Groups() : groups;
}

ManifestScore score_manifest(const Manifest& manifest, const TranscribeBatch& transcribe,
                             const ScoreOptions& options, const ScoreEvents& events) {
  ManifestScore out{Score(options.worst), std::min(manifest.size(), options.limit.value_or(manifest.size()))};
  // A limit counts entries only. Skipped lines have no position among the entries, so they are listed only if
  // there is no limit.
  if (!options.limit)
    for (std::int64_t i = 0; i < manifest.report().left_out(); ++i)
      out.score.add_failed(manifest.left_out(i));
  std::vector<ClipInput> clips;
  for (std::int64_t i = 0; i < out.clips; ++i)
    clips.push_back({manifest.duration(i), [&, i] { return samples_of(manifest, i, options.rate); }});
  const auto transcribe_on = [&](std::span<const std::span<const float>> batch) {
    if (events.stop()) throw Stopped();
    return transcribe(batch);
  };
  const auto done = [&](std::size_t clip, Result<Transcription> result) {
    const auto number = static_cast<std::int64_t>(clip);
    if (result.ok()) {
      out.score.add(number, manifest.place(number), manifest.entry(number), std::move(result->text));
    } else {
      std::string audio;
      try {
        audio = manifest.entry(number).audio;
      } catch (const Error&) {  // the line has changed; the error message already reports it
      }
      out.score.add_failed({manifest.place(number), std::move(audio), result.status().message()});
    }
    events.done(++out.clips_done, out.score.total());
  };
  try {
    transcribe_all(transcribe_on, clips, options.batches, done);
  } catch (const Stopped&) {
  }
  return out;
}

}  // namespace octavo_train
