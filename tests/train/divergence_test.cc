// Checks the advice after gradients that are not finite, for combinations of settings.
// SPDX-License-Identifier: MIT
#include "train/run/divergence.h"

#include "train/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace octavo_train {
namespace {

std::string advice(const std::vector<std::string>& words,
                   const Divergence& found = {.step = 5, .steps = 4000}) {
  const auto config = parse("", "test", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const std::string text = divergence_advice(config->settings, found), begin = "try, the most likely first: ";
  EXPECT_THAT(text, testing::StartsWith(begin));
  return text.substr(begin.size());
}

TEST(Divergence, NamesTheLearningRateAndTheWarmUpWithTheirValues) {
  EXPECT_EQ(advice({"learning_rate=1e-3"}), "learning_rate=0.0003 (it is 0.001), warmup_steps=200 (it is 0)");
  EXPECT_EQ(advice({"learning_rate=3e-4", "warmup_steps=500"}),
            "learning_rate=0.0001 (it is 0.0003), warmup_steps=1000 (it is 500)");
  EXPECT_EQ(advice({"learning_rate=3e-4", "min_lr=1e-4"}, {.step = 5000, .steps = 9000}),
            "learning_rate=0.0001 min_lr=0 (it is 0.0003)")
      << "a late step has nothing to do with the warm-up, and min_lr must not be above the rate";
  EXPECT_EQ(advice({}, {.step = 1, .steps = 60}),
            "learning_rate=0.0003 (it is 0.001), warmup_steps=10 (it is 0)");
}

TEST(Divergence, ARateFarTooHighComesFirst) {
  EXPECT_EQ(
      advice({"learning_rate=1e30", "max_grad_norm=0"}, {.step = 2, .steps = 60}),
      "learning_rate=0.001 (it is 1e+30), max_grad_norm=1.0 (gradients are not clipped), warmup_steps=10 "
      "(it is 0)");
  EXPECT_EQ(advice({"learning_rate=1e30", "compute_dtype=float16", "max_grad_norm=1e6"},
                   {.step = 2000, .steps = 9000}),
            "learning_rate=0.001 (it is 1e+30), compute_dtype=bfloat16 (float16 overflows above 65504), "
            "max_grad_norm=1.0 (it is 1e+06)");
}

TEST(Divergence, Float16ComesFirstWhereTheDeviceHasBfloat16) {
  const Divergence late = {.step = 2000, .steps = 9000};
  EXPECT_EQ(advice({"compute_dtype=float16", "max_grad_norm=0"}, late),
            "compute_dtype=bfloat16 (float16 overflows above 65504), max_grad_norm=1.0 (gradients are not "
            "clipped), learning_rate=0.0003 (it is 0.001)");
  Divergence old = late;
  old.bf16 = false;
  EXPECT_EQ(advice({"compute_dtype=float16"}, old), "learning_rate=0.0003 (it is 0.001)");
}

TEST(Divergence, Fp8HasARangeThatEnds) {
  const Divergence found = {.step = 2000, .steps = 9000, .fp8 = true};
  EXPECT_EQ(advice({"use_fp8=true"}, found),
            "fp8.format=e5m2 (it is hybrid, whose E4M3 numbers end at 448), fp8.enabled=false, "
            "learning_rate=0.0003 (it is 0.001)");
  EXPECT_THAT(advice({"use_fp8=true", "fp8.format=e4m3"}, found),
              testing::StartsWith("fp8.format=e5m2 (it is e4m3, "));
  EXPECT_EQ(advice({"use_fp8=true", "fp8.format=e5m2"}, found),
            "fp8.enabled=false, learning_rate=0.0003 (it is 0.001)");
  EXPECT_THAT(advice({"use_fp8=true"}), testing::Not(testing::HasSubstr("fp8"))) << "the run has none";
}

TEST(Divergence, StatesOfFourBitsComeLastAndOnlyWithoutAnotherCause) {
  const Divergence late = {.step = 2000, .steps = 9000};
  EXPECT_EQ(advice({"optimizer=adamw_4bit"}, late),
            "learning_rate=0.0003 (it is 0.001), optimizer=adamw_8bit (its states have 4 bits)");
  for (const char* other :
       {"max_grad_norm=0", "learning_rate=1", "compute_dtype=float16", "optimizer=adamw_8bit"})
    EXPECT_THAT(advice({"optimizer=adamw_4bit", other}, late), testing::Not(testing::HasSubstr("optimizer=")))
        << other;
}

// Every proposal is a valid command-line argument.
TEST(Divergence, ProposalsCanBeAppendedToTheCommand) {
  const std::vector<std::string> words = {"optimizer=adamw_4bit", "use_fp8=true", "learning_rate=3e-4",
                                          "min_lr=1e-4"};
  for (const char* proposal :
       {"fp8.format=e5m2", "fp8.enabled=false", "max_grad_norm=1.0", "warmup_steps=200",
        "optimizer=adamw_8bit", "compute_dtype=bfloat16", "min_lr=0"}) {
    std::vector<std::string> all = words;
    all.emplace_back(proposal);
    const auto config = parse("", "test", all);
    EXPECT_TRUE(config.ok()) << config.status().message();
  }
}

}  // namespace
}  // namespace octavo_train
