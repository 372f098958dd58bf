// A language of tones for tests: a word is a sine wave, and a recording is a sequence of words. Writes
// recordings and manifests in this language, and a tokenizer for it.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/audio/recordings.h"
#include "tests/train/files_support.h"
#include "train/audio/audio.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

struct SpokenWord {
  std::string_view text;
  double hertz;
};
inline constexpr std::array<SpokenWord, 4> kSpokenWords = {
    {{"low", 300}, {"mid", 700}, {"high", 1500}, {"peep", 3000}}};
inline constexpr double kWordSeconds = 0.25;

// Returns the one to three words of clip `number`, which depend only on the number.
inline std::string spoken_text(int number) {
  std::string out;
  for (int i = 0; i <= number % 3; ++i)
    out += (out.empty() ? "" : " ") +
           std::string(kSpokenWords[static_cast<std::size_t>(number + i * (number / 4 + 1)) % 4].text);
  return out;
}

inline std::vector<float> spoken_samples(const std::string& text, int rate) {
  std::vector<float> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    for (const SpokenWord& word : kSpokenWords) {
      if (word.text != std::string_view(text).substr(at, end - at)) continue;
      const std::vector<float> sound = tone(word.hertz, kWordSeconds, rate);
      out.insert(out.end(), sound.begin(), sound.end());
    }
    at = end + 1;
  }
  return out;
}

inline std::string manifest_line(const std::string& audio, double seconds, const std::string& text) {
  return nlohmann::json{{"audio_filepath", audio}, {"duration", seconds}, {"text", text}}.dump() + '\n';
}

// Writes clips first … first + count - 1 as files in the folder. Returns their manifest lines.
inline std::string write_spoken(const TempFolder& folder, int first, int count, int rate = 16000,
                                const std::string& extension = ".wav") {
  std::string lines;
  for (int i = first; i < first + count; ++i) {
    const std::string name = "clip" + std::to_string(i) + extension, text = spoken_text(i);
    const std::vector<float> samples = spoken_samples(text, rate);
    const Status written = write_audio(folder.at(name), samples, rate);
    EXPECT_TRUE(written.ok()) << written.message();
    lines += manifest_line(name, static_cast<double>(samples.size()) / rate, text);
  }
  return lines;
}

// Returns a tokenizer of the language's letters, which can write every word.
inline std::string spoken_tokenizer() {
  static const std::string made = [] {
    int left = 40;
    auto bytes = train_tokenizer({.vocabulary = 12, .kind = "char"}, [&](std::string& line) {
      line = spoken_text(left);
      return left-- > 0;
    });
    EXPECT_TRUE(bytes.ok()) << bytes.status().message();
    return bytes.ok() ? *bytes : std::string();
  }();
  return made;
}

}  // namespace octavo_train
