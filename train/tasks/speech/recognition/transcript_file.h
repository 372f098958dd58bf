// Formats the transcript of a recording as plain text, JSON, or subtitles (SRT and WebVTT). Does not use
// LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/recognition/transcription.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

enum class TranscriptFormat : std::uint8_t { text, json, srt, vtt };

std::optional<TranscriptFormat> parse_transcript_format(std::string_view name);
std::string_view extension_of(TranscriptFormat format);  // ".txt", ".json", ".srt", ".vtt"

// A subtitle: consecutive words that are shown together. A cue lasts up to seven seconds, has up to 84
// characters (two lines of 42), and ends at the end of a sentence or before a pause of a second.
struct Cue {
  double begin = 0, end = 0;
  std::string text;
  friend bool operator==(const Cue&, const Cue&) = default;
};
std::vector<Cue> cues_of(const std::vector<TranscribedWord>& words);

// Formats a transcript. `path` and `seconds` are those of the recording; only JSON contains them, as one
// line. The text ends with a line break.
std::string transcript_text(TranscriptFormat format, const std::string& path, double seconds,
                            const Transcription& transcription);

}  // namespace octavo_train
