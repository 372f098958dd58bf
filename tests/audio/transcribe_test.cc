// Tests the transcription of files with a fake recognizer that reads tokens from the samples: the loudness of
// a frame of 80 ms encodes its token's number.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/batch_recognition.h"

#include "tests/train/text_files.h"
#include "train/audio/audio.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using testing::StartsWith;

constexpr int kRate = 16000;
constexpr std::size_t kFrame = 1280;
constexpr double kLoud = 1000;

const Tokenizer& tokenizer() {
  static const Tokenizer made = [] {
    int line = 0;
    const auto bytes = train_tokenizer({.vocabulary = 30}, [&](std::string& out) {
      out = "three blue boats sail by";
      return line++ < 20;
    });
    return std::move(Tokenizer::from_bytes(*bytes, "made")).value();
  }();
  return made;
}

// Returns samples with about one word per second; the tokens of a word are in consecutive frames.
std::vector<float> spoken(const std::vector<std::string>& words) {
  std::vector<float> out;
  for (std::size_t second = 0; second < words.size(); ++second) {
    out.resize((second * kRate + kFrame - 1) / kFrame * kFrame);
    for (const std::int64_t token : tokenizer().encode(words[second]))
      out.resize(out.size() + kFrame, static_cast<float>(static_cast<double>(token + 1) / kLoud));
  }
  out.resize(words.size() * kRate);
  return out;
}

std::vector<Transcription> transcribe_clips(std::span<const std::span<const float>> clips) {
  std::vector<Transcription> out;
  for (const auto& clip : clips) {
    Transcription& transcribed = out.emplace_back();
    for (std::size_t i = 0; (i + 1) * kFrame <= clip.size(); ++i) {
      const auto token = std::lround(static_cast<double>(clip[i * kFrame + kFrame / 2]) * kLoud) - 1;
      if (token >= 0) transcribed.tokens.push_back({token, static_cast<std::int64_t>(i), 1});
    }
    transcribed = make_transcription(transcribed.tokens, tokenizer(), 0.08);
  }
  return out;
}

struct Done {
  std::map<std::string, FileTranscription> transcribed;
  std::map<std::string, std::string> bad;
  double progress = 0, total = 0;
};

Done transcribe(const std::vector<std::string>& paths, const TranscribeOptions& options) {
  Done out;
  const RecognizerInfo info{transcribe_clips, &tokenizer(), kRate, 0.08};
  transcribe_files(info, paths, options,
                   {[&](std::size_t i, Result<FileTranscription> file) {
                      EXPECT_FALSE(out.transcribed.contains(paths[i]) || out.bad.contains(paths[i]))
                          << "twice";
                      if (file.ok()) {
                        out.transcribed[paths[i]] = *file;
                      } else {
                        out.bad[paths[i]] = file.status().message();
                      }
                    },
                    [&](double done, double total) {
                      EXPECT_GE(done, out.progress);
                      out.progress = done;
                      out.total = total;
                    }});
  return out;
}

std::vector<std::string> words(std::size_t count) {
  const std::vector<std::string> all = {"three", "blue", "boats", "sail", "by"};
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(all[(i * i / 3 + i) % all.size()]);
  return out;
}

TEST(Transcribe, WindowsOfALongFileGiveTheTextOfTheFile) {
  const TextFiles files;
  const std::string path = files.path("long.flac");
  ASSERT_TRUE(write_audio(path, spoken(words(100)), kRate).ok());
  const FileTranscription whole = transcribe({path}, {.window = 200}).transcribed.at(path);
  EXPECT_EQ(whole.seconds, 100);
  ASSERT_EQ(whole.transcription.words.size(), 100U);
  std::string text;
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(whole.transcription.words[i].text, words(100)[i]);
    EXPECT_NEAR(whole.transcription.words[i].begin, static_cast<double>(i), 0.081);
    EXPECT_GT(whole.transcription.words[i].end, whole.transcription.words[i].begin);
    text += (i > 0 ? " " : "") + words(100)[i];
  }
  EXPECT_EQ(whole.transcription.text, text);
  for (const double window : {3.0, 7.3, 20.0}) {
    for (const int threads : {1, 3}) {
      TranscribeOptions options{.window = window, .overlap = 1};
      options.batches = {.batch_seconds = 30, .threads = threads};
      const Done done = transcribe({path}, options);
      EXPECT_EQ(done.transcribed.at(path).transcription.words, whole.transcription.words) << window;
      EXPECT_NEAR(done.progress, 100, 1e-6);
    }
  }
}

TEST(Transcribe, BadFilesAreNamedAndTheOthersGoOn) {
  const TextFiles files;
  std::vector<std::string> paths = {files.path("missing.wav"), files.write("text.wav", "no recording"),
                                    files.path("a.wav"), files.path("cut.flac"), files.path("b.wav")};
  ASSERT_TRUE(write_audio(paths[2], spoken({"three", "blue"}), kRate).ok());
  ASSERT_TRUE(write_audio(paths[4], spoken({"boats"}), kRate).ok());
  ASSERT_TRUE(write_audio(paths[3], spoken(words(60)), kRate).ok());
  std::filesystem::resize_file(paths[3], std::filesystem::file_size(paths[3]) / 2);
  const Done done = transcribe(paths, {.window = 10});
  EXPECT_EQ(done.transcribed.at(paths[2]).transcription.text, "three blue");
  EXPECT_EQ(done.transcribed.at(paths[4]).transcription.text, "boats");
  EXPECT_EQ(done.transcribed.size(), 2U);
  for (const std::size_t bad : {0, 1, 3}) EXPECT_THAT(done.bad.at(paths[bad]), StartsWith(paths[bad]));
  EXPECT_NEAR(done.progress, done.total, 1e-6);
}

TEST(Transcribe, WordsHaveTheirPiecesAndTimes) {
  const auto ids = tokenizer().encode("three boats");
  Transcript tokens;
  for (std::size_t i = 0; i < ids.size(); ++i) tokens.push_back({ids[i], static_cast<std::int64_t>(i), 4});
  const Transcription transcribed = make_transcription(tokens, tokenizer(), 0.08);
  EXPECT_EQ(transcribed.text, "three boats");
  EXPECT_EQ(transcribed.tokens, tokens);
  ASSERT_EQ(transcribed.words.size(), 2U);
  std::int64_t second = 1;  // index of the second word's first token
  while (!begins_word(tokenizer(), ids[static_cast<std::size_t>(second)])) ++second;
  EXPECT_EQ(transcribed.words[0], (TranscribedWord{"three", 0, 0.08 * static_cast<double>(second)}));
  EXPECT_EQ(transcribed.words[1].end, 0.08 * (static_cast<double>(ids.size()) - 1 + 4));
  EXPECT_EQ(make_transcription({}, tokenizer(), 0.08).text, "");
}

}  // namespace
}  // namespace octavo_train
