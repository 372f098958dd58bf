// Tests the keys of runs with several ranks, and the micro-batches that make a step of a fixed size.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/checks.h"
#include "train/config/config.h"

namespace octavo_train {
namespace {

Settings settings_of(const Words& words) { return parsed("", words).settings; }
std::string error_for(const Words& words, std::int64_t ranks) {
  return accumulation_for(training_of("", words), ranks).status().message();
}

TEST(RankSettings, DefaultsAndValues) {
  const TrainingSettings plain = training_of("", {});
  EXPECT_FALSE(plain.num_gpus);
  EXPECT_FALSE(plain.global_batch_size);
  EXPECT_EQ(plain.parallel, Parallel::automatic);
  EXPECT_EQ(plain.reduce_dtype, ReduceType::automatic);
  EXPECT_EQ(plain.rank_timeout, 600);
  const TrainingSettings given =
      training_of("", {"num_gpus=1", "parallel=zero2", "reduce_dtype=fp32", "rank_timeout=2.5"});
  EXPECT_EQ(given.num_gpus, 1);
  EXPECT_EQ(given.parallel, Parallel::zero2);
  EXPECT_EQ(given.reduce_dtype, ReduceType::float32);
  EXPECT_EQ(given.rank_timeout, 2.5);
  EXPECT_EQ(error_of("parallel: zero3"),
            "run.yaml:1:11: training.parallel: got zero3, expected auto, ddp, zero1 or zero2");
  EXPECT_THAT(error_of("num_gpus: 0"), HasSubstr("got 0, expected an integer from 1 to 65536, or null"));
  EXPECT_THAT(error_of("rank_timeout: 0"), HasSubstr("got 0, expected a number from 1 to"));
}

TEST(RankSettings, PassesFollowFromTheGlobalBatch) {
  const Words fixed = {"global_batch_size=48", "batch_size=4"};
  EXPECT_EQ(accumulation_for(training_of("", {"gradient_accumulation_steps=3"}), 7).value(), 3);
  EXPECT_EQ(training_of("", fixed).gradient_accumulation_steps, 12) << "of one rank";
  for (const auto& [ranks, passes] : {std::pair<int, int>{1, 12}, {2, 6}, {3, 4}, {4, 3}, {12, 1}})
    EXPECT_EQ(accumulation_for(training_of("", fixed), ranks).value(), passes) << ranks;
  EXPECT_EQ(error_for(fixed, 5),
            "training.global_batch_size: got 48, but per_device_train_batch_size is 4 and there are 5 ranks; "
            "5 ranks cannot divide it: use 1, 2, 3, 4, 6, 8, 12, 16, 24 or 48 ranks, or a multiple of 5");
  EXPECT_EQ(error_for(fixed, 8),
            "training.global_batch_size: got 48, but per_device_train_batch_size is 4 and there are 8 ranks; "
            "per_device_train_batch_size x gradient_accumulation_steps must be 6 with 8 ranks: 1 x 6, 2 x 3, "
            "3 x 2 or 6 x 1");
  EXPECT_THAT(error_for({"global_batch_size=16777216", "batch_size=1048576"}, 128),
              AllOf(HasSubstr("with 128 ranks: …, 64 x 2048, 128 x 1024, "), HasSubstr(" or 131072 x 1")));
  EXPECT_THAT(error_for({"global_batch_size=16777216", "batch_size=1", "gradient_accumulation_steps=4"}, 2),
              HasSubstr("with 2 ranks: 1 x 8388608, 2 x 4194304, "));
}

TEST(RankSettings, PassesThatAreGivenMustAgree) {
  const Words both = {"global_batch_size=16", "batch_size=4", "gradient_accumulation_steps=2"};
  EXPECT_EQ(accumulation_for(training_of("", both), 2).value(), 2);
  EXPECT_EQ(error_for(both, 1),
            "training.global_batch_size: got 16, but per_device_train_batch_size is 4, "
            "gradient_accumulation_steps is 2 and there is one rank; per_device_train_batch_size x "
            "gradient_accumulation_steps must be 16 with one rank: 1 x 16, 2 x 8, 4 x 4, 8 x 2 or 16 x 1");
  const Words one = {"global_batch_size=16", "batch_size=4", "gradient_accumulation_steps=1"};
  EXPECT_THAT(error_for(one, 2), HasSubstr("gradient_accumulation_steps is 1 and there are 2 ranks"));
  // A value that no number of ranks can divide is reported with its place in the file.
  EXPECT_EQ(error_of("global_batch_size: 10\nbatch_size: 4\n"),
            "run.yaml:1:1: training.global_batch_size: got 10, but training.per_device_train_batch_size is 4 "
            "(run.yaml:2:1); it must be a multiple of 4, the samples of a rank's micro-batches");
  EXPECT_THAT(
      error_of("global_batch_size: 8\nbatch_size: 4\ngradient_accumulation_steps: 3"),
      HasSubstr("training.gradient_accumulation_steps is 3 (run.yaml:3:1); it must be a multiple of 12"));
  EXPECT_THAT(
      error_of("task: speech\nglobal_batch_size: 8\nper_device_train_batch_size: auto"),
      AllOf(StartsWith("run.yaml:2:1: training.global_batch_size: got 8"), HasSubstr("give a number")));
  EXPECT_THAT(
      error_of("task: speech\nglobal_batch_size: 8\nbatch_seconds: 100\nbatch_size: 4"),
      AllOf(StartsWith("run.yaml:2:1: training.global_batch_size: got 8, but data.batch_seconds is 100"),
            HasSubstr("batches have different numbers of samples")));
}

TEST(RankSettings, TheExampleCanBeStarted) {
  const auto config = load(OCTAVO_TEST_DOCS_DIR "/../examples/train/two_ranks.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->settings.training.num_gpus, 2);
  EXPECT_EQ(accumulation_for(config->settings.training, 2).value(), 2);
}

TEST(RankSettings, AreReadBackAndMakeNoOtherRun) {
  const Settings fixed = settings_of({"global_batch_size=48", "batch_size=4"});
  const std::string saved = to_yaml(fixed);
  EXPECT_THAT(saved, HasSubstr("gradient_accumulation_steps: auto\n  global_batch_size: 48\n"));
  const Settings again = parse(saved, "saved.yaml").value().settings;
  EXPECT_EQ(to_yaml(again), saved);
  EXPECT_TRUE(again.training.accumulation_is_auto);
  EXPECT_EQ(accumulation_for(again.training, 3).value(), 4);
  EXPECT_EQ(training_of("", {"gradient_accumulation_steps=auto"}).gradient_accumulation_steps, 1);

  EXPECT_THAT(experiment_differences(
                  settings_of({}),
                  settings_of({"num_gpus=1", "parallel=zero1", "reduce_dtype=float32", "rank_timeout=9"})),
              IsEmpty());
  // Only the number of samples in a step matters, not how it is composed.
  EXPECT_THAT(experiment_differences(settings_of({"batch_size=16"}), fixed, 3, 1), IsEmpty());
  EXPECT_THAT(experiment_differences(settings_of({"batch_size=4", "gradient_accumulation_steps=2"}),
                                     settings_of({"batch_size=4", "gradient_accumulation_steps=1"}), 1, 2),
              IsEmpty());
  EXPECT_THAT(experiment_differences(settings_of({"global_batch_size=24", "batch_size=4"}), fixed),
              ElementsAre("training.global_batch_size: 24 -> 48"));
}

}  // namespace
}  // namespace octavo_train
