// What was heard of a recording in the formats of files: plain text, JSON, and the subtitles SRT and WebVTT.
// No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/heard.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

enum class TranscriptFormat : std::uint8_t { text, json, srt, vtt };

std::optional<TranscriptFormat> parse_transcript_format(std::string_view name);
std::string_view extension_of(TranscriptFormat format);  // ".txt", ".json", ".srt", ".vtt"

// Words that are shown together: up to seven seconds and 84 characters (two lines of 42), to the end of a
// sentence or a pause of a second.
struct Cue {
  double begin = 0, end = 0;
  std::string text;
  friend bool operator==(const Cue&, const Cue&) = default;
};
std::vector<Cue> cues_of(const std::vector<HeardWord>& words);

// `path` and `seconds`: of the recording, for JSON, which is one line. Ends with a line break.
std::string transcript_text(TranscriptFormat format, const std::string& path, double seconds,
                            const Heard& heard);

}  // namespace octavo::train
