// Recordings of every format, rate and number of channels, read whole and in parts.
// SPDX-License-Identifier: MIT
#include "audio/recordings.h"
#include "train/audio/audio.h"
#include "train/files_support.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octavo::train {
namespace {

TEST(ReadAudio, GivesBackWhatWasWritten) {
  const TempFolder folder;
  const std::vector<float> samples = tone(440, 1.5, 16000);
  for (const char* name : {"a.wav", "a.flac"}) {
    const std::string path = folder.at(name);
    ASSERT_TRUE(write_audio(path, samples, 16000).ok());
    const auto clip = read_audio({.path = path});
    ASSERT_TRUE(clip.ok()) << clip.status().message();
    ASSERT_EQ(clip->samples.size(), samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) ASSERT_NEAR(clip->samples[i], samples[i], 1.0 / 32768);
    EXPECT_EQ(clip->source.rate, 16000);
    EXPECT_EQ(clip->source.frames, 24000);
    EXPECT_EQ(clip->source.seconds(), 1.5);
  }
}

}  // namespace
}  // namespace octavo::train
