// Reads manifests of recordings in NeMo's format, JSON lines. A line is an object with `audio_filepath`,
// `duration` (seconds) and `text`, and may have `offset` (seconds), `lang` and `speaker`. open() checks every
// line but keeps only 16 bytes per line in memory (and 4 bytes per entry of an epoch if there are several
// manifests or weights); entry() reads its line again. Does not use LibTorch and opens no recording.
//
//   const std::vector<ManifestSource> sources = {{"train.jsonl"}, {"noisy.jsonl", 0.5}};
//   auto manifest = octavo_train::Manifest::open(sources, {.max_duration = 20});
//   if (manifest.ok()) use(manifest->entry(0).audio);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace octavo_train {

struct ManifestEntry {
  // A relative path in a manifest is resolved against the manifest's folder, or against the working directory
  // if the file exists only there.
  std::string audio;
  double offset = 0, duration = 0;  // seconds
  std::string text;
  std::optional<std::string> lang, speaker;
};

struct ManifestSource {
  std::string path;
  // How often the manifest's clips occur in an epoch. The integer part is the number of times that every clip
  // occurs. The fractional part selects a random subset that occurs once more; the subset is the same every
  // time.
  double weight = 1;
};

enum class BadClips : std::uint8_t { error, skip };

struct ManifestOptions {
  double min_duration = 0.1, max_duration = 20;  // seconds; other clips are skipped
  BadClips bad = BadClips::error;                // what to do with lines that are not a valid entry
  // If a line has no `text` field, `text_filepath` (a file with the text) or `normalized_text` replaces it.
  // Only the name `text` has these alternatives.
  std::string text_field = "text", lang_field = "lang";
  std::string how_to_skip = "data.bad_clips: skip";  // how a user selects BadClips::skip, for error messages
  bool needs_text = true;  // false: a line may have no text, such as one of a noise recording
};

// Counts of lines. Every line counts once, regardless of its manifest's weight.
struct ManifestReport {
  std::int64_t lines = 0;  // lines that are not blank
  std::int64_t taken = 0;
  std::int64_t too_short = 0, too_long = 0;  // compared with the options' durations
  std::int64_t unwanted = 0;                 // `_skipme` is true
  std::int64_t bad = 0;                      // lines that are not a valid entry
  double seconds = 0, seconds_left_out = 0;

  [[nodiscard]] std::int64_t left_out() const { return too_short + too_long + unwanted + bad; }
  // Returns a summary: "9,000 of 10,000 clips (12.5 hours); skipped: 900 longer than 20 s, 100 bad lines".
  [[nodiscard]] std::string text(const ManifestOptions& options) const;
};

struct SkippedClip {
  std::string place, audio, reason;  // audio: empty if the line does not name it
};

// The entries of one or several manifests, as they occur in an epoch. Several manifests are interleaved
// evenly, so that the first n entries contain each of them in proportion; entries of one manifest keep their
// order. Copies share the index. Several threads may call the functions concurrently.
class Manifest {
 public:
  // Opens and checks the manifests. An error names the file, line, column and reason. It is also an error if
  // no clip remains.
  static Result<Manifest> open(std::span<const ManifestSource> sources, const ManifestOptions& options = {});

  // Returns the number of entries in an epoch, repetitions included. REQUIRES, below: 0 <= index < size().
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] double duration(std::int64_t index) const;  // seconds, rounded to float
  // Reads the entry's line again. Throws octavo::Error if the file has changed since it was opened.
  [[nodiscard]] ManifestEntry entry(std::int64_t index) const;
  [[nodiscard]] std::string place(std::int64_t index) const;  // "train.jsonl:17"
  // Returns the number of the entry's clip among all clips that were kept, 0 … report().taken - 1. All
  // repetitions of a clip have the same number.
  [[nodiscard]] std::int64_t clip(std::int64_t index) const;

  [[nodiscard]] const ManifestReport& report() const;
  [[nodiscard]] const ManifestOptions& options() const;
  [[nodiscard]] SkippedClip left_out(
      std::int64_t number) const;  // 0 … report().left_out() - 1, in the order of the files
  // Returns a hash of the entries, 32 hexadecimal digits. It covers the files' bytes, the weights and the
  // options, but not the paths.
  [[nodiscard]] const std::string& fingerprint() const;
  [[nodiscard]] std::size_t bytes() const;  // of the index in memory

 private:
  struct Index;
  explicit Manifest(std::shared_ptr<const Index> index) : index_(std::move(index)) {}
  std::shared_ptr<const Index> index_;
};

}  // namespace octavo_train
