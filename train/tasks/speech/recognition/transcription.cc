// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/transcription.h"

#include "train/base/utf8.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, SentencePiece's space symbol

std::string trimmed(const std::string& text) {
  constexpr std::string_view kBlank = " \t\n\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) + 1 - first);
}

std::vector<std::int64_t> ids_of(const Transcript& tokens, std::size_t first, std::size_t end) {
  std::vector<std::int64_t> out;
  for (std::size_t i = first; i < end; ++i) out.push_back(tokens[i].token);
  return out;
}

using Json = nlohmann::ordered_json;

constexpr double kLongestCue = 7, kPause = 1;  // seconds
constexpr std::size_t kLine = 42;              // characters per line; a cue has two lines

struct Format {
  TranscriptFormat format;
  std::string_view name, extension;
};
constexpr std::array<Format, 4> kFormats = {{{TranscriptFormat::text, "text", ".txt"},
                                             {TranscriptFormat::json, "json", ".json"},
                                             {TranscriptFormat::srt, "srt", ".srt"},
                                             {TranscriptFormat::vtt, "vtt", ".vtt"}}};

bool ends_sentence(std::string_view word) {
  return word.ends_with('.') || word.ends_with('?') || word.ends_with('!') || word.ends_with("\u2026") ||
         word.ends_with("\u3002");
}

// Formats a time as "00:01:02,345". `point` is the decimal separator, which is a point in WebVTT.
std::string time_text(double seconds, char point) {
  const long long all = std::llround(seconds * 1000);
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", all / 3600000, all / 60000 % 60, all / 1000 % 60, point,
                     all % 1000);
}

// Splits a text that is too long for one line into two lines of similar lengths.
std::string two_lines(const std::string& text) {
  if (utf8_count(text) <= kLine) return text;
  std::size_t best = std::string::npos;
  const auto distance = [&](std::size_t i) {
    return std::abs(2.0 * static_cast<double>(i) - static_cast<double>(text.size()));
  };
  for (std::size_t i = text.find(' '); i != std::string::npos; i = text.find(' ', i + 1))
    if (best == std::string::npos || distance(i) < distance(best)) best = i;
  std::string out = text;
  if (best != std::string::npos) out[best] = '\n';
  return out;
}

// Escapes the characters that WebVTT reads as markup.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

double thousandths(double seconds) { return std::round(seconds * 1000) / 1000; }

std::string json_text(const std::string& path, double seconds, const Transcription& transcription) {
  Json words = Json::array();
  for (const TranscribedWord& word : transcription.words) {
    words.push_back(
        {{"word", word.text}, {"start", thousandths(word.begin)}, {"end", thousandths(word.end)}});
  }
  const Json all = {{"audio_filepath", path},
                    {"duration", thousandths(seconds)},
                    {"text", transcription.text},
                    {"words", std::move(words)}};
  // A path is not necessarily valid UTF-8.
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string subtitles(const Transcription& transcription, bool vtt) {
  std::string out = vtt ? "WEBVTT\n" : "";
  const char point = vtt ? '.' : ',';
  std::size_t number = 0;
  for (const Cue& cue : cues_of(transcription.words)) {
    if (!out.empty()) out += '\n';
    if (!vtt) out += std::to_string(++number) + '\n';
    const std::string text = two_lines(cue.text);
    out += time_text(cue.begin, point) + " --> " + time_text(cue.end, point) + '\n' +
           (vtt ? escaped(text) : text) + '\n';
  }
  return out;
}

}  // namespace

bool begins_word(const Tokenizer& tokenizer, std::int64_t token) {
  return tokenizer.piece(token).starts_with(kSpace);
}

Transcription make_transcription(Transcript tokens, const Tokenizer& tokenizer, double frame_seconds) {
  Transcription out;
  out.text = trimmed(tokenizer.decode(ids_of(tokens, 0, tokens.size())));
  const auto seconds = [&](std::int64_t frame) { return static_cast<double>(frame) * frame_seconds; };
  for (std::size_t first = 0, end = 0; first < tokens.size(); first = end) {
    for (end = first + 1; end < tokens.size() && !begins_word(tokenizer, tokens[end].token);) ++end;
    std::int64_t last = tokens[end - 1].end();
    if (end < tokens.size()) last = std::clamp(tokens[end].frame, tokens[first].frame, last);
    std::string text = trimmed(tokenizer.decode(ids_of(tokens, first, end)));
    if (text.empty()) continue;  // the token is only a space
    out.words.push_back({std::move(text), seconds(tokens[first].frame), seconds(last)});
  }
  out.tokens = std::move(tokens);
  return out;
}

std::optional<TranscriptFormat> parse_transcript_format(std::string_view name) {
  const auto* found = std::ranges::find(kFormats, name, &Format::name);
  return found == kFormats.end() ? std::nullopt : std::optional(found->format);
}

std::string_view extension_of(TranscriptFormat format) {
  return std::ranges::find(kFormats, format, &Format::format)->extension;
}

std::vector<Cue> cues_of(const std::vector<TranscribedWord>& words) {
  std::vector<Cue> out;
  bool ended = true;
  for (const TranscribedWord& word : words) {
    const bool joins = !ended && word.begin - out.back().end < kPause &&
                       word.end - out.back().begin <= kLongestCue &&
                       utf8_count(out.back().text) + 1 + utf8_count(word.text) <= 2 * kLine;
    if (joins) {
      out.back().text += ' ' + word.text;
      out.back().end = word.end;
    } else {
      out.push_back({word.begin, word.end, word.text});
    }
    ended = ends_sentence(word.text);
  }
  return out;
}

std::string transcript_text(TranscriptFormat format, const std::string& path, double seconds,
                            const Transcription& transcription) {
  switch (format) {
    case TranscriptFormat::text:
      return transcription.text + '\n';
    case TranscriptFormat::json:
      return json_text(path, seconds, transcription);
    case TranscriptFormat::srt:
    case TranscriptFormat::vtt:
      break;
  }
  return subtitles(transcription, format == TranscriptFormat::vtt);
}

}  // namespace octavo_train
