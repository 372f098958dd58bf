// Tests recordings of every format, rate and number of channels, read completely, in parts and as a stream.
// SPDX-License-Identifier: MIT
#include "tests/audio/recordings.h"
#include "tests/train/files_support.h"
#include "train/audio/audio.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace octavo_train {
namespace {

struct Format {
  const char* extension;
  const char* name;
  double error;  // tolerance per sample; larger for lossy formats
};
constexpr Format kFormats[] = {
    {".wav", "WAV", 2e-5}, {".flac", "FLAC", 2e-5}, {".ogg", "OGG", 0.08}, {".mp3", "MP3", 0.08}};

std::vector<float> samples_of(const AudioRequest& request) {
  const auto clip = read_audio(request);
  EXPECT_TRUE(clip.ok()) << clip.status().message();
  return clip.ok() ? clip->samples : std::vector<float>();
}

// Returns the largest difference, without `margin` samples at each end.
double difference(std::span<const float> a, std::span<const float> b, std::size_t margin = 0) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = margin; i + margin < std::min(a.size(), b.size()); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

TEST(ReadAudio, GivesBackWhatWasWritten) {
  const TempFolder folder;
  const std::vector<float> samples = sweep(200, 2000, 1.5, 16000);
  for (const Format& format : kFormats) {
    const std::string path = folder.at("a") + format.extension;
    const Status status = write_audio(path, samples, 16000);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto clip = read_audio({.path = path});
    ASSERT_TRUE(clip.ok()) << clip.status().message();
    EXPECT_LE(difference(clip->samples, samples, 100), format.error) << path;
    EXPECT_EQ(clip->source.format, format.name);
    EXPECT_EQ(clip->source.rate, 16000);
    EXPECT_EQ(clip->source.channels, 1);
    EXPECT_EQ(clip->source.frames, 24000) << path;
    EXPECT_EQ(clip->source.seconds(), 1.5);
    const auto info = probe_audio(path);
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->frames, 24000);
    EXPECT_EQ(info->format, format.name);
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a.flac", "a.mp3", "a.ogg", "a.wav"}));
}

TEST(ReadAudio, PartsAreTheSamplesOfTheWhole) {
  const TempFolder folder;
  for (const Format& format : kFormats) {
    const std::string path = folder.at("a") + format.extension;
    ASSERT_TRUE(write_audio(path, sweep(200, 2000, 3, 16000), 16000).ok());
    const std::vector<float> whole = samples_of({.path = path});
    ASSERT_EQ(whole.size(), 48000u) << path;
    const auto part = samples_of({.path = path, .offset = 1.25, .seconds = 0.5});
    // An MP3 decoder that starts in the middle differs by rounding in its first frames.
    EXPECT_LE(difference(part, std::span(whole).subspan(20000, 8000)), 1e-4) << path;
    EXPECT_LE(difference(samples_of({.path = path, .offset = 2.5}), std::span(whole).subspan(40000)), 1e-4);
    // The request exceeds the end slightly, because durations are rounded.
    EXPECT_EQ(samples_of({.path = path, .offset = 2.5, .seconds = 0.5 + kShortfallAllowed / 2}).size(),
              8000u);
  }
}

TEST(ReadAudio, AnyRateBecomesTheAskedOne) {
  const TempFolder folder;
  const std::vector<float> expected = sweep(100, 3000, 1, 16000);
  for (const int rate : {8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000, 96000}) {
    const std::string path = folder.at("a.wav");
    ASSERT_TRUE(write_audio(path, sweep(100, 3000, 1, rate), rate).ok());
    const auto clip = read_audio({.path = path});
    ASSERT_TRUE(clip.ok());
    EXPECT_EQ(clip->source.rate, rate);
    EXPECT_LE(difference(clip->samples, expected, 400), 2e-3) << rate;
  }
}

TEST(ReadAudio, ResampledLengthsAreRoundedUp) {
  EXPECT_EQ(resampled(std::vector<float>(44100), 44100, 16000).size(), 16000u);
  EXPECT_EQ(resampled(std::vector<float>(44101), 44100, 16000).size(), 16001u);
  EXPECT_EQ(resampled(std::vector<float>(1), 48000, 16000).size(), 1u);
  EXPECT_EQ(resampled(std::vector<float>(3), 16000, 48000).size(), 9u);
  EXPECT_TRUE(resampled({}, 44100, 16000).empty());
  const std::vector<float> same = tone(300, 0.1, 16000);
  EXPECT_EQ(resampled(same, 16000, 16000), same);
}

TEST(ReadAudio, WhatTheRateCannotHoldIsLeftOut) {
  const std::vector<float> high = resampled(tone(12000, 1, 44100), 44100, 16000);
  for (std::size_t i = 400; i + 400 < high.size(); ++i) ASSERT_NEAR(high[i], 0, 1e-4);
}

TEST(ReadAudio, ChannelsAreAveragedOrChosen) {
  const TempFolder folder;
  const std::string path = folder.at("a.wav");
  std::vector<std::int16_t> samples;
  for (std::int16_t i = 0; i < 3000; ++i) {
    samples.insert(samples.end(), {i, static_cast<std::int16_t>(-i), 8192});
  }
  write_bytes(path, wav_file({.channels = 3}, wav_data(samples)));
  const auto mean = read_audio({.path = path});
  ASSERT_TRUE(mean.ok()) << mean.status().message();
  EXPECT_EQ(mean->source.channels, 3);
  EXPECT_EQ(mean->source.frames, 3000);
  ASSERT_EQ(mean->samples.size(), 3000u);
  const auto first = samples_of({.path = path, .channel = 0});
  const auto second = samples_of({.path = path, .channel = 1});
  ASSERT_EQ(first.size(), 3000u);
  ASSERT_EQ(second.size(), 3000u);
  for (std::size_t i = 0; i < 3000; ++i) {
    ASSERT_NEAR(mean->samples[i], 0.25 / 3, 1e-6);
    ASSERT_EQ(first[i], static_cast<float>(i) / 32768);
    ASSERT_EQ(second[i], -first[i]);
  }
}

TEST(ReadAudio, SpeedIsThatOfATape) {
  const TempFolder folder;
  const std::string path = folder.at("a.wav");
  ASSERT_TRUE(write_audio(path, tone(440, 1.1, 16000), 16000).ok());
  EXPECT_LE(difference(samples_of({.path = path, .speed = 1.1}), tone(484, 1, 16000), 400), 2e-3);
  const auto slower = samples_of({.path = path, .offset = 0.2, .seconds = 0.9, .speed = 0.9});
  EXPECT_EQ(slower.size(), 16000u);
}

TEST(ReadAudio, ThreadsDoNotDisturbEachOther) {
  const TempFolder folder;
  std::vector<std::string> paths;
  std::vector<std::vector<float>> expected;
  for (const Format& format : kFormats) {
    paths.push_back(folder.at("a") + format.extension);
    ASSERT_TRUE(write_audio(paths.back(), sweep(200, 2000, 0.5, 44100), 44100).ok());
    expected.push_back(samples_of({.path = paths.back()}));
  }
  write_bytes(folder.at("bad"), "fLaC and nothing else");
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t worker = 0; worker < 4; ++worker) {
      threads.emplace_back([&, worker] {
        for (std::size_t i = worker; i < worker + 12; ++i) {
          const auto clip = read_audio({.path = paths[i % paths.size()]});
          if (!clip.ok() || clip->samples != expected[i % paths.size()]) ++wrong;
          if (read_audio({.path = folder.at("bad")}).ok()) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(WriteAudio, ClipsWhatIsTooLoud) {
  const TempFolder folder;
  const std::vector<float> loud = {0.5F, 1.5F, -1.5F, 100, -100};
  ASSERT_TRUE(write_audio(folder.at("a.WAV"), loud, 8000).ok());
  const auto read = samples_of({.path = folder.at("a.WAV"), .rate = 8000});
  ASSERT_EQ(read.size(), 5u);
  const float expected[] = {0.5F, 1, -1, 1, -1};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(read[i], expected[i], 1e-4);
}

}  // namespace
}  // namespace octavo_train
