// The result of speech recognition: labels with their positions, text, and words with their times; and its
// formats: plain text, JSON, and subtitles (SRT and WebVTT). No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

class Tokenizer;

// A decoded label and its position. Frames are those of the encoder's output.
struct Emission {
  std::int64_t token = 0, frame = 0;
  std::int64_t duration = 0;  // transducer: frames that the label advances; CTC: frames with this label

  // Returns the first frame after the label. A label lasts at least one frame.
  [[nodiscard]] std::int64_t end() const { return frame + std::max<std::int64_t>(duration, 1); }
  friend bool operator==(const Emission&, const Emission&) = default;
};
using Transcript = std::vector<Emission>;

// A recognized word. Times are in seconds from the beginning of the clip, in multiples of an encoder frame.
struct TranscribedWord {
  std::string text;
  double begin = 0, end = 0;
  friend bool operator==(const TranscribedWord&, const TranscribedWord&) = default;
};

struct Transcription {
  std::string text;
  std::vector<TranscribedWord> words;
  Transcript tokens;
};

// Returns true if the token begins with SentencePiece's space symbol (U+2581).
bool begins_word(const Tokenizer& tokenizer, std::int64_t token);

// Converts decoded tokens to text and words. A word lasts until its last label ends, but at most until the
// next word begins. `frame_seconds` is the duration of an encoder frame.
Transcription make_transcription(Transcript tokens, const Tokenizer& tokenizer, double frame_seconds);

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
