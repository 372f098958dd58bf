// Tests batched transcription: how clips are grouped into batches, and that the number of threads has no
// effect.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/batch_recognition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace octavo_train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(BatchRecognition, BatchesAreOfSimilarLengthsAndWithinTheBudget) {
  const std::vector<double> seconds = {3, 30, 1, 9, 10, 1, 0};
  EXPECT_THAT(plan_batches(seconds, {.batch_seconds = 20}),
              ElementsAre(ElementsAre(1), ElementsAre(4, 3), ElementsAre(0, 2, 5, 6)));
  EXPECT_THAT(plan_batches(seconds, {.batch_seconds = 20, .batch_clips = 3}),
              ElementsAre(ElementsAre(1), ElementsAre(4, 3), ElementsAre(0, 2, 5), ElementsAre(6)));
  EXPECT_THAT(plan_batches({}, {}), ElementsAre());
}

// "Transcribes" a clip as its length and its first sample.
std::vector<Transcription> count_samples(std::span<const std::span<const float>> clips) {
  std::vector<Transcription> out;
  for (const auto& clip : clips)
    out.push_back(
        {std::to_string(clip.size()) + ':' + std::to_string(clip.empty() ? 0 : int(clip[0])), {}, {}});
  return out;
}

TEST(BatchRecognition, EveryClipIsTranscribedForAnyNumberOfThreads) {
  constexpr std::size_t kClips = 100;
  for (const int threads : {1, 3, 0}) {
    std::atomic<int> in_memory = 0, most = 0;
    std::vector<ClipInput> clips;
    for (std::size_t i = 0; i < kClips; ++i) {
      clips.push_back({static_cast<double>(i), [&, i]() -> Result<std::vector<float>> {
                         most = std::max(most.load(), ++in_memory);
                         if (i % 10 == 3) return Status::invalid("clip " + std::to_string(i) + " is bad");
                         if (i == 44) throw std::runtime_error("thrown");
                         return std::vector<float>(i, static_cast<float>(i));
                       }});
    }
    std::vector<std::string> texts(kClips);
    std::size_t batches = 0;
    const TranscribeBatch transcribe = [&](std::span<const std::span<const float>> batch) {
      ++batches;
      return count_samples(batch);
    };
    transcribe_all(transcribe, clips, {.batch_seconds = 400, .threads = threads},
                   [&](std::size_t i, Result<Transcription> result) {
                     --in_memory;
                     EXPECT_EQ(texts[i], "") << "twice";
                     texts[i] = result.ok() ? result->text : result.status().message();
                   });
    EXPECT_EQ(in_memory, 0);
    EXPECT_LT(most, 70);  // three batches, the last of which has the most clips
    EXPECT_GT(batches, 10U);
    for (std::size_t i = 0; i < kClips; ++i) {
      const std::string number = std::to_string(i);
      EXPECT_EQ(texts[i], i % 10 == 3 ? "clip " + number + " is bad"
                          : i == 44   ? "thrown"
                                      : number + ':' + number);
    }
  }
}

TEST(BatchRecognition, AnExceptionOfTheRecognizerEndsIt) {
  std::vector<ClipInput> clips;
  for (int i = 0; i < 50; ++i)
    clips.push_back({1.0, []() -> Result<std::vector<float>> { return std::vector<float>(1); }});
  const TranscribeBatch transcribe =
      [](std::span<const std::span<const float>>) -> std::vector<Transcription> {
    throw std::runtime_error("no device");
  };
  EXPECT_THROW(transcribe_all(transcribe, clips, {.batch_seconds = 2},
                              [](std::size_t, const Result<Transcription>&) {}),
               std::runtime_error);
}

}  // namespace
}  // namespace octavo_train
