// Tests a run's best checkpoints: how they are recorded, ranked, kept and selected by name.
// SPDX-License-Identifier: MIT
#include "tests/train/files_support.h"
#include "train/checkpoint/folder/checkpoint_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Saves a checkpoint whose step was evaluated.
void save(const std::string& run, std::int64_t step, const EvaluationRecord& record) {
  auto writer = CheckpointWriter::begin(run, step, 1000);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->add_text("state.json", std::to_string(step)).ok());
  ASSERT_TRUE(writer->add_text(std::string(kEvaluationName), evaluation_text(record)).ok());
  ASSERT_TRUE(writer->commit().ok());
}

EvaluationRecord with_loss(double loss, bool only_best = false) {
  return {{{"loss", loss, Better::lower}}, "loss", only_best};
}

std::vector<std::int64_t> ranked(const std::string& run, const std::string& metric) {
  std::vector<std::int64_t> out;
  for (const RankedCheckpoint& each : rank_checkpoints(run, metric)) out.push_back(each.checkpoint.step);
  return out;
}

std::vector<std::int64_t> steps_of(const std::string& run) {
  std::vector<std::int64_t> out;
  for (const CheckpointRef& each : list_checkpoints(run)) out.push_back(each.step);
  return out;
}

std::string tear(const std::string& checkpoint) {
  write_bytes(checkpoint + "/state.json", "torn and longer");
  return checkpoint;
}

TEST(EvaluationFile, ComesBackAsItWas) {
  const TempFolder folder;
  const EvaluationRecord record = {
      {{"loss", 0.1 + 0.2, Better::lower}, {"accuracy", -1e300, Better::higher}}, "accuracy", true};
  write_bytes(folder.at("evaluation.json"), evaluation_text(record));
  EXPECT_EQ(read_evaluation(folder.path())->value(), record);
  write_bytes(folder.at("evaluation.json"), evaluation_text({{{"loss", kNan, Better::lower}}, "", false}));
  const auto read = read_evaluation(folder.path());
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(std::isnan((*read)->find("loss")->value));
  EXPECT_EQ((*read)->best_by, "");
  EXPECT_EQ((*read)->find("los"), nullptr);

  EXPECT_FALSE(read_evaluation(folder.at("none"))->has_value());
  for (const char* text :
       {"", "[]", R"({"metrics": 1})", R"({"metrics": [{"name": "loss", "value": "x"}]})"}) {
    write_bytes(folder.at("evaluation.json"), text);
    EXPECT_THAT(read_evaluation(folder.path()).status().message(),
                AllOf(HasSubstr(folder.at("evaluation.json")), HasSubstr("not written by octavo train")));
  }
}

TEST(BestCheckpoints, AreRankedByTheMetricAndItsDirection) {
  const TempFolder folder;
  const std::string& run = folder.path();
  const auto both = [](double loss, double accuracy) {
    return EvaluationRecord{
        {{"loss", loss, Better::lower}, {"accuracy", accuracy, Better::higher}}, "", false};
  };
  save(run, 100, both(3, 0.2));
  save(run, 200, both(1, 0.9));
  save(run, 300, both(2, 0.9));
  save(run, 400, both(kNan, kNan));
  ASSERT_TRUE(save_checkpoint(run, 500).ok());  // not evaluated
  save(run, 600, both(std::numeric_limits<double>::infinity(), 0.1));
  EXPECT_THAT(ranked(run, "loss"), ElementsAre(200, 300, 100));
  EXPECT_THAT(ranked(run, "accuracy"), ElementsAre(200, 300, 100, 600));
  EXPECT_THAT(ranked(run, "wer"), IsEmpty());
  EXPECT_THAT(ranked(folder.at("none"), "loss"), IsEmpty());
  write_bytes(folder.at("checkpoint-200/evaluation.json"), "{");
  EXPECT_THAT(ranked(run, "loss"), ElementsAre(300, 100));
}

TEST(BestCheckpoints, WhatTheyWouldBeJoinedBy) {
  const TempFolder folder;
  const std::string& run = folder.path();
  const auto joins = [&](double loss, std::int64_t step, std::int64_t limit) {
    return is_among_best(run, {"loss", loss, Better::lower}, step, limit);
  };
  EXPECT_TRUE(joins(9, 1, 1));
  EXPECT_FALSE(joins(kNan, 1, 1));
  save(run, 10, with_loss(2));
  save(run, 20, with_loss(1));
  EXPECT_TRUE(joins(0.5, 30, 1));
  EXPECT_FALSE(joins(1, 30, 1)) << "a checkpoint with an equal value replaces none";
  EXPECT_TRUE(joins(1.5, 30, 2));
  EXPECT_FALSE(joins(2, 30, 2));
  EXPECT_TRUE(joins(2, 30, 3));
  EXPECT_TRUE(joins(1.5, 20, 1)) << "the run went back: its own step and later ones do not count";
  EXPECT_TRUE(is_among_best(run, {"accuracy", 0.1, Better::higher}, 30, 1))
      << "no checkpoint has this metric yet";
}

TEST(BestCheckpoints, AreKeptBesideTheNewest) {
  const TempFolder folder;
  const std::string& run = folder.path();
  const std::vector<double> losses = {5, 1, 4, 2, 3, 6};
  for (std::size_t i = 0; i < losses.size(); ++i)
    save(run, static_cast<std::int64_t>(i + 1), with_loss(losses[i]));
  ASSERT_TRUE(prune_checkpoints(run, {.newest = 5, .metric = "loss"}).ok());
  EXPECT_THAT(steps_of(run), ElementsAre(6, 5, 4, 3, 2));
  ASSERT_TRUE(prune_checkpoints(run, {.newest = 1, .metric = "loss", .best = 2}).ok());
  EXPECT_THAT(steps_of(run), ElementsAre(6, 4, 2));
  ASSERT_TRUE(prune_checkpoints(run, {.newest = 1, .metric = "loss", .best = 1}).ok());
  EXPECT_THAT(steps_of(run), ElementsAre(6, 2));
  ASSERT_TRUE(prune_checkpoints(run, {.newest = 1, .metric = "wer"}).ok());
  EXPECT_THAT(steps_of(run), ElementsAre(6));
  EXPECT_THAT(prune_checkpoints(run, KeepRule{.newest = 0}).message(), HasSubstr("keep: got 0"));
}

TEST(BestCheckpoints, WithoutALimitOnlyThoseGoThatWereSavedForTheirMetricAlone) {
  const TempFolder folder;
  const std::string& run = folder.path();
  ASSERT_TRUE(save_checkpoint(run, 1).ok());
  save(run, 2, with_loss(3, true));
  save(run, 3, with_loss(2, false));
  save(run, 4, with_loss(1, true));
  save(run, 5, with_loss(4, true));
  ASSERT_TRUE(prune_checkpoints(run, {.metric = "loss"}).ok());
  EXPECT_THAT(steps_of(run), ElementsAre(5, 4, 3, 1)) << "the newest stays: a run goes on from it";
  save(run, 6, with_loss(0.5, true));
  ASSERT_TRUE(prune_checkpoints(run, {.metric = "loss"}).ok());
  EXPECT_THAT(steps_of(run), ElementsAre(6, 3, 1));
}

TEST(BestCheckpoints, HaveALink) {
  const TempFolder folder;
  const std::string& run = folder.path();
  ASSERT_TRUE(point_best(run, "loss").ok());
  EXPECT_THAT(names_in(run), IsEmpty());
  save(run, 1, with_loss(1));
  save(run, 2, with_loss(2));
  ASSERT_TRUE(point_best(run, "loss").ok());
  EXPECT_THAT(names_in(run), ElementsAre("best", "checkpoint-1", "checkpoint-2", "latest"));
  EXPECT_EQ(fs::read_symlink(run + "/best"), "checkpoint-1");
  save(run, 3, with_loss(0));
  ASSERT_TRUE(point_best(run, "loss").ok());
  EXPECT_EQ(fs::read_symlink(run + "/best"), "checkpoint-3");
}

TEST(ChooseCheckpoint, ByAWord) {
  const TempFolder folder;
  const std::string& run = folder.path();
  save(run, 8, with_loss(1.25));
  save(run, 9, with_loss(2));
  ASSERT_TRUE(save_checkpoint(run, 10).ok());
  const auto path = [&](std::string_view which) {
    const auto chosen = choose_checkpoint(run, which);
    return chosen.ok() ? chosen->path : chosen.status().message();
  };
  EXPECT_EQ(path(""), run + "/checkpoint-10");
  EXPECT_EQ(path("latest"), run + "/checkpoint-10");
  EXPECT_EQ(path("9"), run + "/checkpoint-9");
  EXPECT_EQ(path("best"), run + "/checkpoint-8");
  EXPECT_EQ(choose_checkpoint(run, "best")->why, "best by loss: 1.25");
  EXPECT_EQ(choose_checkpoint(run, "latest")->why, "");
  EXPECT_EQ(choose_checkpoint(run + "/checkpoint-9", "")->path, run + "/checkpoint-9");
  EXPECT_THAT(choose_checkpoint(run + "/checkpoint-9", "best").status().message(),
              HasSubstr("checkpoint-9: is a checkpoint; to choose by best, name its run's folder"));
}

TEST(ChooseCheckpoint, TheMetricIsTheOneOfTheRun) {
  const TempFolder folder;
  const std::string& run = folder.path();
  const auto record = [](double loss, double accuracy, const std::string& by) {
    return EvaluationRecord{
        {{"loss", loss, Better::lower}, {"accuracy", accuracy, Better::higher}}, by, false};
  };
  save(run, 1, record(1, 0.1, ""));
  save(run, 2, record(2, 0.2, ""));
  EXPECT_EQ(choose_checkpoint(run, "best")->path, run + "/checkpoint-1")
      << "without save_best: the first one";
  save(run, 3, record(3, 0.3, "accuracy"));
  EXPECT_EQ(choose_checkpoint(run, "best")->path, run + "/checkpoint-3");
}

TEST(ChooseCheckpoint, TornOnesArePassedOverUnlessNamed) {
  const TempFolder folder;
  const std::string& run = folder.path();
  for (const std::int64_t step : {1, 2, 3}) save(run, step, with_loss(static_cast<double>(-step)));
  tear(run + "/checkpoint-3");
  for (const char* which : {"best", "latest"}) {
    const auto chosen = choose_checkpoint(run, which);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    EXPECT_EQ(chosen->path, run + "/checkpoint-2");
    EXPECT_THAT(chosen->skipped, ElementsAre(HasSubstr("checkpoint-3/state.json: has 15 bytes")));
  }
  EXPECT_THAT(choose_checkpoint(run, "3").status().message(), HasSubstr("checkpoint-3/state.json: has 15"));
  EXPECT_THAT(choose_checkpoint(run + "/checkpoint-3", "").status().message(), HasSubstr("has 15 bytes"));
  const std::vector<std::string_view> files = {"evaluation.json"};
  EXPECT_EQ(choose_checkpoint(run, "best", files)->path, run + "/checkpoint-3") << "what is read is whole";
  tear(run + "/checkpoint-2");
  tear(run + "/checkpoint-1");
  for (const char* which : {"best", "latest"}) {
    EXPECT_THAT(choose_checkpoint(run, which).status().message(),
                HasSubstr("found no complete checkpoint: " + run + "/checkpoint-3/state.json"));
  }
}

TEST(ChooseCheckpoint, ErrorsSayWhatIsThere) {
  const TempFolder folder;
  const std::string& run = folder.path();
  const auto error = [&](std::string_view which) { return choose_checkpoint(run, which).status().message(); };
  for (const char* which : {"", "latest", "best", "7"})
    EXPECT_THAT(error(which),
                HasSubstr("found no checkpoint; expected the folder of a run or of a checkpoint"));
  for (const std::int64_t step : {2, 4, 6}) ASSERT_TRUE(save_checkpoint(run, step).ok());
  EXPECT_EQ(error("7"), run + ": no checkpoint of step 7; its checkpoints are of step 6, 4, 2");
  EXPECT_THAT(error("best"), AllOf(HasSubstr("no checkpoint was saved with an evaluation; set save_best"),
                                   HasSubstr("its checkpoints are of step 6, 4, 2")));
  for (const char* which : {"bset", "-1", "1.5", " 2", "2x", "99999999999999999999"}) {
    EXPECT_EQ(error(which),
              std::string("checkpoint: got ") + which + ", expected best, latest or the number of a step");
  }
  save(run, 8, with_loss(kNan));
  EXPECT_THAT(error("best"), HasSubstr("no checkpoint has a number for loss"));
  for (std::int64_t step = 10; step < 30; ++step)
    fs::create_directory(run + "/checkpoint-" + std::to_string(step));
  EXPECT_THAT(error("7"),
              AllOf(HasSubstr("29, 28, 27, 26, 25, 24, 23, 22 and 16 older ones"), Not(HasSubstr("21"))));
}

}  // namespace
}  // namespace octavo_train
