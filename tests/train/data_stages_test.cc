// Tests stages: the part of a list that remains when there is little data, and how steps are divided.
// SPDX-License-Identifier: MIT
#include "train/config/config.h"
#include "train/data/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo_train {
namespace {

using ::testing::HasSubstr;
using Stages = std::vector<Stage>;

// Predictions stages with four samples per step.
Result<Stages> plan(std::vector<std::string> words, std::int64_t available) {
  words.insert(words.begin(), {"per_device_train_batch_size=2", "gradient_accumulation_steps=2"});
  const auto config = parse("", "test", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return plan_stages(config->settings.data, config->settings.training, available);
}

TEST(Stages, WithoutAListThereIsOne) {
  EXPECT_EQ(*plan({"max_steps=30"}, 1000), (Stages{{1000, 0, 30}}));
  EXPECT_EQ(*plan({"max_steps=30", "max_samples=100"}, 1000), (Stages{{100, 0, 30}}));
  EXPECT_EQ(*plan({"max_steps=30", "max_samples=5000"}, 1000), (Stages{{1000, 0, 30}}));
}

TEST(Stages, MaxStepsCountFromAStepAndEpochsDoNot) {
  const auto from = [](std::vector<std::string> words, std::int64_t first_step) {
    const auto config = parse("", "test", words);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return *plan_stages(config->settings.data, config->settings.training, 1000, nullptr, 1, first_step);
  };
  EXPECT_EQ(from({"batch_size=4", "max_steps=30", "max_samples=500"}, 12), (Stages{{500, 12, 42}}));
  EXPECT_EQ(from({"batch_size=4", "max_steps=30", "stages=[500, -1]"}, 12),
            (Stages{{500, 0, 15}, {1000, 15, 30}}));
  EXPECT_EQ(from({"batch_size=4", "num_train_epochs=1", "max_samples=500"}, 12), (Stages{{500, 0, 125}}));
}

TEST(Stages, StepsAreDividedEqually) {
  EXPECT_EQ(*plan({"max_steps=11", "stages=[10, 50, -1]"}, 1000),
            (Stages{{10, 0, 3}, {50, 3, 6}, {1000, 6, 11}}));
  EXPECT_EQ(*plan({"max_steps=3", "stages=[10, 50, -1]"}, 1000),
            (Stages{{10, 0, 1}, {50, 1, 2}, {1000, 2, 3}}));
}

TEST(Stages, BeyondTheDataIsAllOfIt) {
  EXPECT_EQ(*plan({"max_steps=10", "stages=[100, 500, 1000, -1]"}, 300), (Stages{{100, 0, 5}, {300, 5, 10}}));
  EXPECT_EQ(*plan({"max_steps=10", "stages=[100, 500, 1000, -1]"}, 50), (Stages{{50, 0, 10}}));
  EXPECT_EQ(*plan({"max_steps=10", "stages=[100, -1]"}, 100), (Stages{{100, 0, 10}}));
  EXPECT_EQ(*plan({"num_train_epochs=2", "stages=[100, 500, -1]"}, 300),
            (Stages{{100, 0, 50}, {300, 50, 200}}));
}

TEST(Stages, EpochsAreOfEachStageAndRoundedUp) {
  EXPECT_EQ(*plan({"num_train_epochs=1"}, 9), (Stages{{9, 0, 3}}));
  EXPECT_EQ(*plan({"num_train_epochs=3", "stages=[1, 2, -1]"}, 5), (Stages{{1, 0, 1}, {2, 1, 3}, {5, 3, 7}}));
  EXPECT_EQ(*plan({"num_train_epochs=0.5"}, 16), (Stages{{16, 0, 2}}));
  EXPECT_EQ(*plan({"num_train_epochs=1e-6"}, 16), (Stages{{16, 0, 1}}));
  // 0.07 * 400 is 28.000000000000004 in binary, but must still be seven steps.
  EXPECT_EQ(*plan({"num_train_epochs=0.07"}, 400), (Stages{{400, 0, 7}}));
}

TEST(Stages, EveryRankDrawsAsMuch) {
  const auto config = parse("", "test", std::vector<std::string>{"batch_size=2", "num_train_epochs=1"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto steps = [&](const Batches* own, int ranks) {
    return plan_stages(config->settings.data, config->settings.training, 25, own, ranks)->back().last_step;
  };
  const EqualBatches five(5);
  EXPECT_EQ(steps(nullptr, 1), 13);
  EXPECT_EQ(steps(nullptr, 3), 5);
  EXPECT_EQ(steps(&five, 1), 5);
  EXPECT_EQ(steps(&five, 3), 2);
}

TEST(Stages, TooFewOrTooManySteps) {
  const auto few = plan({"max_steps=2", "stages=[10, 50, -1]"}, 1000);
  EXPECT_EQ(few.status().message(),
            "training.max_steps: got 2, expected at least 3, one for each stage of data.stages; raise it or "
            "use data.stages: null");
  EXPECT_TRUE(plan({"max_steps=2", "stages=[10, 50, -1]"}, 50).ok());
  const auto many = plan({"num_train_epochs=1e9"}, std::int64_t{1} << 40);
  EXPECT_THAT(many.status().message(),
              HasSubstr("training.num_train_epochs: got 1e+09, but with 4 samples per step"));
  const auto config = parse("max_steps: 281474976710656\nbatch_size: 16777215", "test");
  EXPECT_THAT(plan_stages(config->settings.data, config->settings.training, 10).status().message(),
              HasSubstr("training.max_steps: got 281474976710656"));
}

}  // namespace
}  // namespace octavo_train
