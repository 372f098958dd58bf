// Tests complete runs: their logs, resuming to the same bits in every precision, stages, and settings that
// must not change a bit.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"

#include <filesystem>
#include <string>
#include <tuple>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Run, LogsLearningRateTokensAndMemory) {
  const TinyRun& run = whole_run();
  EXPECT_THAT(run.steps("train"), ElementsAre(2, 4, 6, 8, 10, 12));
  EXPECT_THAT(run.steps("eval"), ElementsAre(6, 12));
  EXPECT_THAT(run.steps("checkpoint"), ElementsAre(4, 8, 12));
  const std::vector<Json> train = run.records("train");
  const auto rate = [&](std::size_t i) { return train[i]["lr"].get<double>(); };
  EXPECT_NEAR(rate(0), 3e-3 * 2 / 3, 1e-12) << "warming up";
  EXPECT_NEAR(rate(1), 3e-3, 2e-4);
  EXPECT_GT(rate(3), rate(5));
  EXPECT_GT(rate(5), 0);
  EXPECT_EQ(train[0]["tokens"], 128);
  EXPECT_EQ(train[5]["tokens"], 768);
  // The embedding and the head, 256 x 32 each, and three matrices of 2 heads x 32 x 128.
  constexpr std::int64_t kParams = 2 * 32 * 256 + 3 * 2 * 32 * 128;
  const Json start = run.records("start").at(0);
  EXPECT_EQ(start["params"], kParams);
  EXPECT_EQ(start["batch_tokens"], 64);
  const Json owners = run.records("memory").at(0)["owners"];
  EXPECT_EQ(owners["params"], 4 * kParams);
  EXPECT_EQ(owners["grads"], 4 * kParams);
  // Two moments of one byte per weight, and one fp32 scale per 256 elements: all five tensors are multiples
  // of 256.
  EXPECT_EQ(owners["states"], 2 * (kParams + kParams / 256 * 4));
  EXPECT_EQ(owners["master"], 0);
  // At least the codes of 64 tokens, which the backward pass of two layers needs.
  EXPECT_GT(owners["activations"].get<std::int64_t>(), 2 * 4 * 64 * 2 * 128);
  EXPECT_EQ(run.records("end").at(0)["reason"], "finished");
}

TEST(Run, SaysWhatItDoes) {
  const std::string& said = whole_run().said;
  for (const char* part : {"AdamW 8-bit: ", " B/param, ", " instead of ", "step 12/12", "evaluation loss",
                           "memory:", "a sample:"})
    EXPECT_THAT(said, HasSubstr(part));
}

TEST(Run, SaysWhatWasPlannedAndWhatWasMeasured) {
  const Json pair = whole_run().records("end").at(0)["plan"];
  EXPECT_NEAR(pair["peak"].get<double>() / pair["measured_peak"].get<double>(), 1, 0.03);
  EXPECT_EQ(pair["measured_peak"], whole_run().records("memory").at(0)["peak"]);
  EXPECT_THAT(whole_run().said, ContainsRegex("plan: .* MB, measured .* MB \\([-+].*%\\)"));
}

TEST(Run, TheLossFalls) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"max_steps=150", "eval_steps=150", "save_steps=null", "logging_steps=1", "learning_rate=1e-2"});
  const std::vector<Json> train = run.records("train");
  EXPECT_GT(train.front()["loss"].get<double>(), 5.0) << "ln 256 is 5.5";
  EXPECT_LT(train.back()["loss"].get<double>(), run.records("start").at(0)["unigram_entropy"].get<double>());
}

TEST(Run, TheSavedConfigIsTheRun) {
  const TempFolder folder;
  TinyRun again(folder.path(), "again");
  again.yaml = read_bytes(whole_run().out + "/config.yaml");
  again.finish({"output_dir=" + again.out});
  EXPECT_EQ(again.bits(12), whole_run().bits(12));
}

TEST(Run, NeitherWorkersNorCheckpointedLayersChangeABit) {
  const TempFolder folder;
  TinyRun workers(folder.path(), "workers");
  workers.finish({"dataloader_num_workers=0"});
  EXPECT_EQ(workers.bits(12), whole_run().bits(12));
  TinyRun thrifty(folder.path(), "thrifty");
  thrifty.finish({"gradient_checkpointing=true"});
  EXPECT_EQ(thrifty.bits(12), whole_run().bits(12));
  const auto activations = [](const TinyRun& run) {
    return run.records("memory").at(0)["owners"]["activations"].get<std::int64_t>();
  };
  EXPECT_LT(activations(thrifty), activations(whole_run()));
}

TEST(Run, AccumulationEqualsTheLargeBatch) {
  const TempFolder folder;
  // Uses dropout, because masks depend on the sample, not on its position in a batch.
  const Words common = {"dropout=0.2",     "optimizer=adamw", "max_steps=3",
                        "logging_steps=1", "eval_steps=null", "save_steps=null"};
  const auto with = [&](Words words) {
    words.insert(words.end(), common.begin(), common.end());
    return words;
  };
  TinyRun large(folder.path(), "large");
  large.finish(with({"batch_size=8"}));
  TinyRun small(folder.path(), "small");
  small.finish(with({"batch_size=2", "gradient_accumulation_steps=4"}));
  const std::vector<Json> a = large.records("train"), b = small.records("train");
  ASSERT_EQ(a.size(), 3U);
  ASSERT_EQ(b.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto near = [&](const char* key, double relative) {
      const auto value = a[i][key].get<double>();
      EXPECT_NEAR(b[i][key].get<double>(), value, relative * value) << key << " of step " << i + 1;
    };
    // fp32 sums of a few thousand terms have another order: a relative error of 2^-24 * sqrt(4096), doubled.
    near("loss", 0x1p-17);
    near("grad_norm", 0x1p-15);
  }
}

TEST(Run, ResumesFromAnOlderCheckpoint) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"resume_from_checkpoint=" + whole_run().checkpoint(8)});
  EXPECT_THAT(run.said, HasSubstr("resuming from"));
  EXPECT_EQ(run.bits(12), whole_run().bits(12));
  run.fail({"resume_from_checkpoint=" + whole_run().checkpoint(8), "max_steps=20"},
           "choose another output_dir");
  run.fail({"resume_from_checkpoint=" + run.checkpoint(4)}, "does not exist");
}

TEST(Run, AnOlderCheckpointOfItsOwnIsRefusedWhileThereIsANewer) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"max_steps=8"});
  run.fail({"resume_from_checkpoint=" + run.checkpoint(4), "max_steps=20"},
           "checkpoint-8 is newer; remove it, or choose another output_dir");
}

TEST(Run, ATornCheckpointIsPassedOver) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  const Words words = {"max_steps=8", "lr_scheduler=constant"};
  run.finish(words);
  const auto bits = run.bits(8);
  std::string torn = bits.first;
  torn.back() = static_cast<char>(torn.back() ^ 1);
  write_bytes(run.checkpoint(8) + "/model.safetensors", torn);
  run.finish(words);
  EXPECT_THAT(run.said, HasSubstr("warning: not resumed from"));
  EXPECT_THAT(run.said, HasSubstr("checkpoint-4, step 4 of 8"));
  EXPECT_EQ(run.bits(8), bits);
}

TEST(Run, NothingIsLeftToDo) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"max_steps=2"});
  const auto before = run.bits(2);
  run.finish({"max_steps=2"});
  EXPECT_THAT(run.said, HasSubstr("nothing to do: the run is complete, " + run.checkpoint(2)));
  EXPECT_EQ(run.bits(2), before);
}

TEST(Run, KeepsAsManyCheckpointsAsAskedFor) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"save_steps=2", "save_total_limit=2"});
  for (const int step : {2, 4, 6, 8}) EXPECT_FALSE(run.has(step)) << step;
  EXPECT_TRUE(run.has(10));
  EXPECT_TRUE(run.has(12));
}

TEST(Run, StagesEqualRaisingMaxSamplesByHand) {
  const TempFolder folder;
  TinyRun staged(folder.path(), "staged");
  staged.finish({"data.stages=[10, 40, -1]", "lr_scheduler=constant", "save_steps=null"});
  EXPECT_THAT(staged.said, HasSubstr("stage 2 of 3: 40 samples, to step 8"));
  const Json stage = staged.records("stage").at(0);
  EXPECT_EQ(stage["stage"], 1);
  EXPECT_EQ(stage["samples"], 40);
  EXPECT_THAT(staged.steps("eval"), ElementsAre(4, 6, 8, 12));
  TinyRun by_hand(folder.path(), "by_hand");
  for (const auto& [steps, samples] : {std::pair(4, 10), std::pair(8, 40), std::pair(12, -1)}) {
    by_hand.finish({"max_steps=" + std::to_string(steps), "max_samples=" + std::to_string(samples),
                    "lr_scheduler=constant", "save_steps=null"});
  }
  EXPECT_EQ(by_hand.bits(12), staged.bits(12));
}

TEST(Run, StagesSurviveAStopWithinOne) {
  const TempFolder folder;
  const Words words = {"data.stages=[10, 40, -1]", "lr_scheduler=constant", "save_steps=1"};
  TinyRun whole(folder.path(), "whole");
  whole.finish(words);
  for (const int step : {4, 5, 8}) {
    TinyRun run(folder.path(), std::to_string(step));
    Words resumed = words;
    resumed.push_back("resume_from_checkpoint=" + whole.checkpoint(step));
    run.finish(resumed);
    EXPECT_EQ(run.bits(12), whole.bits(12)) << step;
  }
}

TEST(Run, Epochs) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"num_train_epochs=2", "max_samples=9", "save_steps=null"});
  EXPECT_EQ(run.records("end").at(0)["step"], 9);
  const Json sampler = run.state(9)["sampler"];
  EXPECT_EQ(sampler["draws"], 18);
  EXPECT_EQ(sampler["samples"], 9);
}

TEST(Run, TheOtherGuidesSwitchOfTheOptimizerIsLogged) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  const std::string line = "  optimizer: adamw_8bit\n";
  run.yaml.replace(run.yaml.find(line), line.size(), "  USE_4BIT_OPTIMIZER: true\n");
  run.finish({"max_steps=1"});
  EXPECT_THAT(run.said, HasSubstr("AdamW 8-bit: "));
  EXPECT_THAT(run.said, HasSubstr("use_4bit_optimizer: true is 8-bit AdamW"));
}

// Every optimizer runs in the two common precisions, and two of them in the rarer ones.
class Matrix : public testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {};

TEST_P(Matrix, ResumesToTheSameBits) {
  const auto [optimizer, dtype, master] = GetParam();
  Words words = {std::string("optimizer=") + optimizer, std::string("compute_dtype=") + dtype, "save_steps=2",
                 "max_steps=4", "eval_steps=null"};
  if (*master != '\0') words.push_back(std::string("master_weights=") + master);
  const TempFolder folder;
  TinyRun whole(folder.path(), "whole");
  whole.finish(words);
  const bool bf16 = dtype == std::string("bfloat16");
  EXPECT_EQ(whole.header(4, "model.safetensors")["encoder"]["dtype"], bf16 ? "BF16" : "F32");
  EXPECT_EQ(whole.header(4, "optimizer.safetensors").contains("encoder.master"),
            bf16 && master != std::string("stochastic"));
  TinyRun resumed(folder.path(), "resumed");
  words.push_back("resume_from_checkpoint=" + whole.checkpoint(2));
  resumed.finish(words);
  EXPECT_EQ(resumed.bits(4), whole.bits(4));
  const Json scale = whole.state(4)["loss_scale"];
  EXPECT_EQ(resumed.state(4)["loss_scale"], scale);
  EXPECT_EQ(scale.is_null() || scale.empty(), dtype != std::string("float16"));
}

const auto kName = [](const auto& info) {
  const std::string master = std::get<2>(info.param);
  return std::string(std::get<0>(info.param)) + '_' + std::get<1>(info.param) +
         (master.empty() ? "" : '_' + master);
};
INSTANTIATE_TEST_SUITE_P(Common, Matrix,
                         testing::Combine(testing::Values("adamw", "adamw_8bit", "adamw4bit", "adamw_fp8",
                                                          "adam_bf16", "lion_8bit", "sgd", "sgd_4bit"),
                                          testing::Values("float32", "bfloat16"), testing::Values("")),
                         kName);
INSTANTIATE_TEST_SUITE_P(Masters, Matrix,
                         testing::Combine(testing::Values("adamw_8bit", "sgd"), testing::Values("bfloat16"),
                                          testing::Values("32", "stochastic")),
                         kName);
INSTANTIATE_TEST_SUITE_P(Scaled, Matrix,
                         testing::Combine(testing::Values("adamw_8bit", "sgd"), testing::Values("float16"),
                                          testing::Values("")),
                         kName);

}  // namespace
}  // namespace octavo_train
