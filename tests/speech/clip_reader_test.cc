// Tests reading manifest lines as clips: the samples and tokens, speed and noise, and every kind of bad clip.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/data/clip_reader.h"

#include "tests/speech/spoken_tones.h"
#include "train/tasks/speech/data/skipped_clips.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace octavo_train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RecordingSettings plain() {
  RecordingSettings out;
  out.noise_snr = {10, 10};
  out.noise_prob = 1;
  return out;
}

class ClipReaderTest : public ::testing::Test {
 protected:
  ClipReaderTest() : tokenizer(Tokenizer::from_bytes(spoken_tokenizer(), "tones").value()) {}

  [[nodiscard]] ClipReader reader(const RecordingSettings& settings = plain(),
                                  const Manifest* noise = nullptr, SpeechHead head = SpeechHead::tdt) const {
    return {tokenizer, {}, settings, noise, head, 7};
  }
  ManifestEntry entry(const std::string& name, const std::vector<float>& samples, const std::string& text,
                      int rate = 16000) {
    EXPECT_TRUE(write_audio(folder.at(name), samples, rate).ok());
    return {folder.at(name), 0, static_cast<double>(samples.size()) / rate, text, {}, {}};
  }
  std::string why(const ManifestEntry& entry, const RecordingSettings& settings = plain(),
                  SpeechHead head = SpeechHead::tdt) const {
    return reader(settings, nullptr, head).read(entry).status().message();
  }

  TempFolder folder;
  Tokenizer tokenizer;
};

TEST_F(ClipReaderTest, SamplesAtTheModelsRateAndTokens) {
  for (const int rate : {8000, 16000, 44100}) {
    const auto clip = reader().read(entry("a.wav", spoken_samples("low high", rate), "low high", rate));
    ASSERT_TRUE(clip.ok()) << clip.status().message();
    EXPECT_EQ(clip->samples.size(), 8000U);
    EXPECT_EQ(tokenizer.decode(clip->tokens), "low high");
  }
  ManifestEntry part = entry("b.wav", spoken_samples("low high", 16000), "high");
  part.offset = 0.25;
  part.duration = 0.25;
  EXPECT_EQ(reader().read(part)->samples.size(), 4000U);
}

TEST_F(ClipReaderTest, BadClipsSayWhy) {
  const std::vector<float> sound = spoken_samples("low", 16000);
  const ManifestEntry good = entry("good.wav", sound, "low");
  EXPECT_EQ(why(good), "");
  EXPECT_THAT(why({folder.at("none.wav"), 0, 1, "low", {}, {}}), HasSubstr("none.wav"));
  EXPECT_THAT(why(entry("silent.wav", std::vector<float>(8000), "low")),
              AllOf(HasSubstr("silent.wav: is silent from 0 s to 0.5 s")));
  EXPECT_THAT(why(entry("empty.wav", sound, " \t")), HasSubstr("its text is empty"));
  EXPECT_THAT(why(entry("letters.wav", sound, "low q")),
              HasSubstr("its text has \"q\" that the tokenizer (tones) has no token for: low q"));
  EXPECT_THAT(why(entry("accent.wav", sound, "h\xC3\xA9")), HasSubstr("\"\xC3\xA9\""));
  ManifestEntry longer = good;
  longer.duration = 1;
  EXPECT_THAT(why(longer), HasSubstr("its duration or its sample rate is wrong"));
  EXPECT_THAT(why(entry("short.wav", std::vector<float>(sound.begin(), sound.begin() + 300), "low")),
              HasSubstr("has 300 samples, fewer than the 320 of 2 frames"));
}

TEST_F(ClipReaderTest, WhatABatchHasNoRoomForIsBad) {
  const ManifestEntry clip = entry("a.wav", spoken_samples("low mid high", 16000), "low mid high");
  RecordingSettings tight = plain();
  tight.batch_seconds = 0.75;
  EXPECT_EQ(why(clip, tight), "");
  tight.batch_seconds = 0.5;
  EXPECT_THAT(why(clip, tight),
              AllOf(HasSubstr("it has 0.75 s, but a batch has 0.5 s"), HasSubstr("data.batch_seconds")));
  // At the slowest speed the clip may be in a batch with others, so its length at that speed counts.
  tight.batch_seconds = 0.8;
  EXPECT_EQ(why(clip, tight), "");
  tight.speed_perturb = {0.9, 1.0};
  EXPECT_THAT(why(clip, tight), HasSubstr("data.batch_seconds"));
  tight = plain();
  const std::int64_t cells = reader().cost(clip.duration, clip.text).cells;
  EXPECT_EQ(cells, 10 * (static_cast<std::int64_t>(tokenizer.encode(clip.text).size()) + 1))
      << "75 frames are 10";
  tight.batch_cells = cells;
  EXPECT_EQ(why(clip, tight), "");
  tight.batch_cells = cells - 1;
  EXPECT_THAT(why(clip, tight), HasSubstr("data.batch_cells"));
  EXPECT_THAT(why(clip, plain(), SpeechHead::ctc), HasSubstr("CTC needs one for each"));
  EXPECT_EQ(
      why(entry("b.wav", spoken_samples("low low low low", 16000), "low low"), plain(), SpeechHead::ctc), "");
}

TEST_F(ClipReaderTest, SpeedAndNoiseAreOfSeedAndDraw) {
  const ManifestEntry clip = entry("a.wav", spoken_samples("low mid", 16000), "low mid");
  RecordingSettings settings = plain();
  settings.speed_perturb = {0.9, 1.0, 1.1};
  std::set<std::size_t> lengths;
  for (std::uint64_t draw = 0; draw < 30; ++draw) {
    const auto clip_read = reader(settings).read(clip, draw);
    ASSERT_TRUE(clip_read.ok());
    lengths.insert(clip_read->samples.size());
    EXPECT_EQ(clip_read->samples, reader(settings).read(clip, draw)->samples);
  }
  EXPECT_EQ(lengths.size(), 3U);
  EXPECT_EQ(reader(settings).read(clip)->samples.size(), 8000U) << "evaluation plays as recorded";

  // The recording has ten seconds of noise, of which only the part that the clip needs is read.
  const ManifestEntry noise = entry("noise.wav", tone(5000, 10, 16000), "");
  write_bytes(folder.at("noise.jsonl"),
              nlohmann::json{{"audio_filepath", noise.audio}, {"duration", 10}}.dump() + "\n");
  const std::vector<ManifestSource> sources = {{folder.at("noise.jsonl")}};
  const auto manifest = Manifest::open(sources, {.needs_text = false});
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const auto power = [](const std::vector<float>& x) {
    return std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  };
  const std::vector<float> clean = reader().read(clip)->samples;
  settings = plain();
  std::vector<float> noisy = reader(settings, &*manifest).read(clip, 3)->samples;
  ASSERT_EQ(noisy.size(), clean.size());
  EXPECT_NE(noisy, reader(settings, &*manifest).read(clip, 4)->samples);
  for (std::size_t i = 0; i < clean.size(); ++i) noisy[i] -= clean[i];
  EXPECT_NEAR(10 * std::log10(power(clean) / power(noisy)), 10, 0.1);
  EXPECT_EQ(reader(settings, &*manifest).read(clip)->samples, clean);
  settings.noise_prob = 0.5;
  int noises = 0;
  for (std::uint64_t draw = 0; draw < 40; ++draw)
    noises += reader(settings, &*manifest).read(clip, draw)->samples == clean ? 0 : 1;
  EXPECT_GT(noises, 10);
  EXPECT_LT(noises, 30);
}

TEST(SkippedClips, AreListedOnceAndAfterAResumeToo) {
  const TempFolder folder;
  const auto lines = [&] { return read_bytes(folder.at(kSkippedName)); };
  {
    SkippedClips skipped;
    EXPECT_TRUE(skipped.add({"a.jsonl:1", "x.wav", "is \"silent\""}).ok());
    EXPECT_EQ(skipped.path(), "");
    EXPECT_TRUE(skipped.list_in(folder.path()).ok());
    EXPECT_TRUE(skipped.add({"a.jsonl:1", "x.wav", "again"}).ok());
    EXPECT_TRUE(skipped.add({"a.jsonl:7", "y\xFF.wav", "gone"}).ok());
    EXPECT_EQ(skipped.count(), 2);
  }
  const std::string first = lines();
  EXPECT_EQ(std::ranges::count(first, '\n'), 2);
  EXPECT_EQ(nlohmann::json::parse(first.substr(0, first.find('\n'))),
            nlohmann::json::parse(R"({"place": "a.jsonl:1", "audio": "x.wav", "reason": "is \"silent\""})"));
  // The file ends with a partial line after a crash, and the run starts a second time.
  write_bytes(folder.at(kSkippedName), first + "{\"place\": \"a.js");
  SkippedClips more;
  EXPECT_TRUE(more.add({"a.jsonl:7", "y.wav", "gone"}).ok());
  EXPECT_TRUE(more.add({"b.jsonl:2", "z.wav", "gone"}).ok());
  EXPECT_TRUE(more.list_in(folder.path()).ok());
  EXPECT_EQ(more.count(), 3) << "those of before too";
  EXPECT_THAT(lines(), testing::StartsWith(first + "{\"place\": \"a.js\n{\"place\":\"b.jsonl:2\""));
  EXPECT_EQ(std::ranges::count(lines(), '\n'), 4);
  SkippedClips nowhere;
  EXPECT_THAT(nowhere.list_in(folder.at("none")).message(), HasSubstr("skipped.jsonl: cannot be opened"));
}

}  // namespace
}  // namespace octavo_train
