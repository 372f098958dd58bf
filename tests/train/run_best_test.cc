// Tests complete runs that keep their best checkpoints: which ones are saved and kept, also by a run that was
// stopped, and which settings are rejected.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"
#include "train/checkpoint/folder/checkpoint_choice.h"

#include <algorithm>
#include <filesystem>
#include <map>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// The learning rate is too high, so the loss goes up and down.
const Words kUpAndDown = {"learning_rate=2", "lr_scheduler=constant", "warmup_steps=0", "max_steps=8",
                          "eval_steps=1",    "save_steps=null",       "sample_tokens=0"};

Words with(Words words) {
  words.insert(words.end(), kUpAndDown.begin(), kUpAndDown.end());
  return words;
}

std::vector<std::int64_t> kept(const TinyRun& run) {
  std::vector<std::int64_t> out;
  for (const CheckpointRef& each : list_checkpoints(run.out)) out.push_back(each.step);
  return out;
}

// Returns the steps of the lowest losses in the log, and the last step.
std::vector<std::int64_t> best_and_last(const TinyRun& run, std::size_t limit) {
  std::vector<std::pair<double, std::int64_t>> losses;
  for (const Json& record : run.records("eval")) losses.emplace_back(record["loss"], record["step"]);
  const std::int64_t last = losses.back().second;
  std::ranges::sort(losses);
  std::vector<std::int64_t> out = {last};
  for (std::size_t i = 0; i < limit; ++i) out.push_back(losses.at(i).second);
  std::ranges::sort(out, std::greater());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

TEST(BestRun, KeepsTheBestBesideTheLast) {
  const TempFolder folder;
  TinyRun one(folder.path(), "one"), three(folder.path(), "three");
  one.finish(with({"save_best=loss"}));
  const std::vector<std::int64_t> expected = best_and_last(one, 1);
  ASSERT_EQ(expected.size(), 2U) << "the best must not be the last";
  EXPECT_EQ(kept(one), expected);
  EXPECT_EQ(fs::read_symlink(one.out + "/best").string(), "checkpoint-" + std::to_string(expected[1]));
  EXPECT_EQ(choose_checkpoint(one.out, "best")->path, one.checkpoint(expected[1]));
  EXPECT_THAT(one.said, ContainsRegex("step " + std::to_string(expected[1]) +
                                      ": evaluation loss [0-9.]+, the best loss so far"));
  three.finish(with({"save_best=loss", "save_best_limit=3"}));
  EXPECT_EQ(kept(three), best_and_last(three, 3));
  EXPECT_THAT(three.said, AllOf(HasSubstr(", among the best 3 by loss"), Not(HasSubstr("so far"))));
  EXPECT_EQ(three.bits(8), one.bits(8)) << "what is kept changes nothing";
}

TEST(BestRun, OfTheNewestNothingIsTaken) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish(with({"save_best=loss", "save_total_limit=2"}));
  // save_steps is null, so besides the best and the last checkpoint, the newest two are the last two that
  // were the best when they were saved.
  const std::vector<std::int64_t> there = kept(run);
  const std::vector<std::int64_t> expected = best_and_last(run, 1);
  for (const std::int64_t step : expected) EXPECT_THAT(there, testing::Contains(step));
  TinyRun dense(folder.path(), "dense");
  dense.finish({"learning_rate=2", "lr_scheduler=constant", "warmup_steps=0", "max_steps=8", "eval_steps=1",
                "save_steps=1", "sample_tokens=0", "save_best=loss", "save_total_limit=2"});
  std::vector<std::int64_t> all = best_and_last(dense, 1);
  all.push_back(7);
  std::ranges::sort(all, std::greater());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(kept(dense), all);
}

TEST(BestRun, AStoppedRunKnowsItsBest) {
  const TempFolder folder;
  const Words words = {"save_best=loss", "save_best_limit=2"};
  TinyRun whole(folder.path(), "whole");
  whole.finish(with(words));
  TinyRun stopped(folder.path(), "stopped");
  for (const int steps : {3, 5, 8}) {
    Words part = with(words);
    part.push_back("max_steps=" + std::to_string(steps));
    stopped.finish(part);
  }
  EXPECT_EQ(stopped.bits(8), whole.bits(8));
  const auto values = [](const TinyRun& run) {
    std::map<std::int64_t, double> out;
    for (const RankedCheckpoint& each : rank_checkpoints(run.out, "loss"))
      if (out.size() < 2) out[each.checkpoint.step] = each.value;
    return out;
  };
  EXPECT_EQ(values(stopped), values(whole));
  EXPECT_EQ(fs::read_symlink(stopped.out + "/best"), fs::read_symlink(whole.out + "/best"));
}

TEST(BestRun, CheckpointsHaveTheirEvaluation) {
  const TinyRun& run = whole_run();  // evaluated at 6 and 12, saved at 4, 8 and 12, without save_best
  EXPECT_FALSE(read_evaluation(run.checkpoint(8))->has_value());
  const auto record = read_evaluation(run.checkpoint(12))->value();
  ASSERT_EQ(record.metrics.size(), 1U);
  EXPECT_EQ(record.metrics[0], (Metric{"loss", run.records("eval").back()["loss"], Better::lower}));
  EXPECT_EQ(record.best_by, "");
  EXPECT_FALSE(record.only_best);
  EXPECT_TRUE(verify_checkpoint(run.checkpoint(12)).ok());
  EXPECT_FALSE(fs::exists(run.out + "/best"));
}

TEST(BestRun, AMetricThatTheTaskHasNotIsRefused) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.fail({"save_best=accuracy"}, "training.save_best: got accuracy, expected loss");
  run.fail({"save_best_limit=2"}, "training.save_best_limit: got 2, but training.save_best is null");
  EXPECT_FALSE(fs::exists(run.out));
}

}  // namespace
}  // namespace octavo_train
