// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/transcription.h"

#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <algorithm>
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

}  // namespace octavo_train
