// Manifests of recordings: NeMo's JSON lines. A line is an object with `audio_filepath`, `duration` (seconds)
// and `text`, and may have `offset` (seconds), `lang` and `speaker`. Opening checks every line; what stays in
// memory is 16 bytes for each (and 4 for each turn of several manifests or weights), and entry() reads its
// line again. No LibTorch, and no recording is opened.
//
//   const std::vector<ManifestSource> sources = {{"train.jsonl"}, {"noisy.jsonl", 0.5}};
//   auto manifest = octavo::train::Manifest::open(sources, {.max_duration = 20});
//   if (manifest.ok()) use(manifest->entry(0).audio);
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace octavo::train {

struct ManifestEntry {
  // A relative path leads from the manifest's folder, or, if only that is there, from the working directory.
  std::string audio;
  double offset = 0, duration = 0;  // seconds
  std::string text;
  std::optional<std::string> lang, speaker;
};

struct ManifestSource {
  std::string path;
  // How often its clips come in an epoch: all of them as many times as the whole part says, and for the rest
  // a subset that is random and always the same.
  double weight = 1;
};

enum class BadClips : std::uint8_t { error, skip };

struct ManifestOptions {
  double min_duration = 0.1, max_duration = 20;  // clips outside are left out
  BadClips bad = BadClips::error;                // of lines that are no entry
  // Without a field of this name, `text` may be `text_filepath` (a file with the text) or `normalized_text`.
  std::string text_field = "text", lang_field = "lang";
  std::string how_to_skip = "data.bad_clips: skip";  // what a user writes for BadClips::skip, for the error
  bool needs_text = true;                            // false: a clip may say nothing, as noise does
};

// Every line is counted once, whatever its manifest weighs.
struct ManifestReport {
  std::int64_t lines = 0;  // that are not blank
  std::int64_t taken = 0;
  std::int64_t too_short = 0, too_long = 0;  // for the options' durations
  std::int64_t unwanted = 0;                 // `_skipme` is true
  std::int64_t bad = 0;                      // no entry
  double seconds = 0, seconds_left_out = 0;

  [[nodiscard]] std::int64_t left_out() const { return too_short + too_long + unwanted + bad; }
  // "9,000 of 10,000 clips (12.5 hours); left out: 900 longer than 20 s, 100 bad lines"
  [[nodiscard]] std::string text(const ManifestOptions& options) const;
};

struct LeftOutClip {
  std::string place, audio, reason;  // audio: empty where the line does not say
};

// May be moved. Its const functions may be called by several threads at once.
//
// Several manifests are mixed evenly, so that the first n entries are of each in proportion; those of one
// manifest keep their order.
class Manifest {
 public:
  // An error names file, line, column and reason. Manifests in which no clip is left are one too.
  static Result<Manifest> open(std::span<const ManifestSource> sources, const ManifestOptions& options = {});

  Manifest(Manifest&&) noexcept;
  Manifest& operator=(Manifest&&) noexcept;
  ~Manifest();

  // Entries, as often as they come in an epoch. REQUIRES, below: index from 0 to size() - 1.
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] double duration(std::int64_t index) const;  // with the precision of a float
  // Throws octavo::Error where the file has changed since it was opened.
  [[nodiscard]] ManifestEntry entry(std::int64_t index) const;
  [[nodiscard]] std::string place(std::int64_t index) const;  // "train.jsonl:17"
  // Which line it is of all that were taken, 0 … report().taken - 1: the same for every turn of one clip.
  [[nodiscard]] std::int64_t clip(std::int64_t index) const;

  [[nodiscard]] const ManifestReport& report() const;
  [[nodiscard]] const ManifestOptions& options() const;
  [[nodiscard]] LeftOutClip left_out(
      std::int64_t number) const;  // 0 … report().left_out() - 1, as the files have them
  // 32 hexadecimal digits of the entries: of the files' bytes, the weights and the options, not of paths.
  [[nodiscard]] const std::string& fingerprint() const;
  [[nodiscard]] std::size_t bytes() const;  // of memory that it keeps

 private:
  struct Index;
  explicit Manifest(std::unique_ptr<Index> index);
  std::unique_ptr<Index> index_;
};

}  // namespace octavo::train
