// Tests a build without the audio libraries: every function's error names what to install.
// SPDX-License-Identifier: MIT
#include "train/audio/audio.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo_train {
namespace {

void expect_fix(const Status& status) {
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_THAT(status.message(), testing::HasSubstr("a.wav"));
  EXPECT_THAT(status.message(),
              testing::HasSubstr("install libsndfile1-dev, libsoxr-dev and libsentencepiece-dev"));
}

TEST(NoAudio, SaysWhatToInstall) {
  EXPECT_FALSE(audio_built_in());
  expect_fix(probe_audio("a.wav").status());
  expect_fix(read_audio({.path = "a.wav"}).status());
  expect_fix(write_audio("a.wav", {}, 16000));
}

}  // namespace
}  // namespace octavo_train
