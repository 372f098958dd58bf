// Tests how a run begins: with initial weights from a file, or as a dry run that writes nothing.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"
#include "train/predict/predict.h"
#include "train/run/dry_run.h"

#include <filesystem>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Trains one step that changes no weight.
const Words kStill = {"max_steps=1", "learning_rate=1e-30", "weight_decay=0", "eval_steps=null",
                      "sample_tokens=0"};

Words still(const std::string& from, Words more = {}) {
  more.insert(more.begin(), kStill.begin(), kStill.end());
  more.push_back("init_from=" + from);
  return more;
}

TEST(WarmRun, BeginsWithTheWeightsOfAnother) {
  const TempFolder folder;
  const std::string there = read_bytes(whole_run().checkpoint(12) + "/model.safetensors");
  for (const std::string& from :
       {whole_run().out, whole_run().checkpoint(12), whole_run().checkpoint(12) + "/model.safetensors"}) {
    TinyRun run(folder.path(), "run" + std::to_string(from.size()));
    run.finish(still(from));
    EXPECT_EQ(run.bits(1).first, there) << from;
    EXPECT_THAT(run.said,
                HasSubstr("weights from " + whole_run().checkpoint(12) + "/model.safetensors: 5 tensors"));
    const Json init = run.records("init").at(0);
    EXPECT_EQ(init["file"], whole_run().checkpoint(12) + "/model.safetensors");
    EXPECT_EQ(init["used"], 5);
    EXPECT_EQ(run.records("start").at(0)["step"], 0);
  }
  TinyRun older(folder.path(), "older");
  older.finish(still(whole_run().checkpoint(4)));
  EXPECT_EQ(older.bits(1).first, whole_run().bits(4).first);
}

TEST(WarmRun, GoesOnWithoutReadingThemAgain) {
  const TempFolder folder;
  fs::copy(whole_run().checkpoint(12) + "/model.safetensors", folder.at("base.safetensors"));
  const Words words = {"init_from=" + folder.at("base.safetensors"), "lr_scheduler=constant",
                       "sample_tokens=0"};
  TinyRun whole(folder.path(), "whole"), stopped(folder.path(), "stopped");
  whole.finish(words);
  Words first = words;
  first.emplace_back("max_steps=4");
  stopped.finish(first);
  fs::remove(folder.at("base.safetensors"));
  stopped.said.clear();
  stopped.finish(words);
  EXPECT_THAT(stopped.said, AllOf(HasSubstr("init_from is not read: the run resumes from"),
                                  Not(HasSubstr("weights from"))));
  EXPECT_EQ(stopped.bits(12), whole.bits(12));
  stopped.fail({"max_steps=14", "lr_scheduler=constant", "sample_tokens=0"}, "training.init_from: ");
}

TEST(WarmRun, WhatDoesNotFitLeavesNothing) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.fail({"init_from=" + folder.at("none")},
           "training.init_from: " + folder.at("none") + " does not exist");
  run.fail({"n_embd=64", "init_from=" + whole_run().out},
           "encoder is F32 [2, 32, 128], expected F32 [2, 64, 256]");
  run.fail({"init_rename={\"a.*\": \"b.*\"}", "init_from=" + whole_run().out},
           "training.init_rename: \"a.*\" changes no name");
  run.fail({"init_rename={\"encoder\": \"coder\"}", "init_from=" + whole_run().out},
           "missing in it: encoder; left over from it: encoder");
  run.fail({"init_rename={\"encoder\": \"coder\"}"}, "but training.init_from is null");
  EXPECT_FALSE(fs::exists(run.out));
  run.finish(still(whole_run().out, {"init_rename={\"encoder\": \"coder\"}", "init_strict=false"}));
  EXPECT_THAT(run.said,
              AllOf(HasSubstr("warning: missing in it, so initialised as usual: 1 tensors: encoder"),
                    HasSubstr("warning: left over from it: 1 tensors: encoder")));
  EXPECT_NE(run.bits(1).first, whole_run().bits(12).first);
}

std::string rehearse(TinyRun& run, const Words& words, std::int64_t steps) {
  const auto config = parse(run.yaml, "run.yaml", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  Recorder recorder;
  const auto done = dry_run(*config, steps, recorder);
  run.said += recorder.said;
  if (!done.ok()) return done.status().message();
  EXPECT_EQ(done->signal, 0);
  std::string out;
  for (const std::string& line : done->lines) out += line + '\n';
  return out;
}

// Two small batches predict the memory of a larger one, for models that cannot be predicted otherwise.
TEST(MeasuredPlan, LiesOnTheLineThroughSmallBatches) {
  const TempFolder folder;
  const TinyRun run(folder.path(), "run");
  const LoadWith load = [&](const Words& words) {
    Words all = {"batch_size=32", "gradient_accumulation_steps=2", "per_device_eval_batch_size=1"};
    all.insert(all.end(), words.begin(), words.end());
    return parse(run.yaml, "run.yaml", all);
  };
  PredictionRequest request;
  request.gpu = octavo::plan::find_gpu("h100").value();
  Recorder recorder;
  request.method = PredictionRequest::Method::steps;
  request.measure = [&](const Config& config) { return measure_steps(config, recorder); };
  const auto plan = predict(load, request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto whole = dry_run(load({}).value(), 3, recorder);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(plan->measured_rows, (std::vector<std::int64_t>{8, 16}));
  EXPECT_EQ(plan->rows, 32);
  EXPECT_EQ(plan->passes, 2);
  EXPECT_EQ(plan->parameters, whole->measured.parameters);
  EXPECT_EQ(plan->states.states, whole->measured.states.states);
  EXPECT_NEAR(static_cast<double>(plan->peak) / static_cast<double>(whole->measured.peak), 1, 0.03);
  EXPECT_GT(plan->step_seconds, 0);
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : memory_rows(*plan)) sum += bytes;
  EXPECT_EQ(sum, plan->total());
  EXPECT_THAT(prediction_lines(*plan), testing::Contains(HasSubstr("measured on cpu")));
  EXPECT_THAT(prediction_lines(*plan),
              testing::Contains(HasSubstr("with 8 and 16 rows; 32 are on the line")));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(MeasuredPlan, OfOneRowIsThatRowsAndOfTwoGpusIsNone) {
  const TempFolder folder;
  const TinyRun run(folder.path(), "run");
  const LoadWith load = [&](Words words) {
    words.insert(words.begin(), "batch_size=1");
    return parse(run.yaml, "run.yaml", words);
  };
  PredictionRequest request;
  request.gpu = octavo::plan::find_gpu("h100").value();
  Recorder recorder;
  request.method = PredictionRequest::Method::steps;
  request.measure = [&](const Config& config) { return measure_steps(config, recorder); };
  EXPECT_EQ(predict(load, request)->measured_rows, std::vector<std::int64_t>{1});
  EXPECT_THAT(predict(
                  [&](Words words) {
                    words.insert(words.begin(), "max_steps=1");
                    return load(words);
                  },
                  request)
                  .status()
                  .message(),
              HasSubstr("raise training.max_steps"));
  EXPECT_EQ(recorder.said.find("evaluating"), std::string::npos);
  request.num_gpus = 2;
  EXPECT_THAT(predict(load, request).status().message(), HasSubstr("cannot be measured on one"));
}

TEST(DryRun, SaysWhatTheRunNeedsAndWritesNothing) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  const std::string said = rehearse(run, {"max_steps=1000", "save_steps=300", "save_best=loss"}, 4);
  for (const char* part :
       {"dry run: 4 steps and an evaluation; nothing was written",
        "memory, with 2 sequences of 32 bytes in a micro-batch:", "  optimizer states", "  activations",
        "  peak of a step", "speed: ", " tok/s, ", " s a step\n", "to the end: 1000 steps in ",
        ", 167 evaluations in ", " hours", "checkpoints: 5 of ", " are free"}) {
    EXPECT_THAT(said, HasSubstr(part));
  }
  EXPECT_THAT(run.said, HasSubstr("AdamW 8-bit: "));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(DryRun, ReadsNoCheckpointAndChangesNone) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"max_steps=4", "sample_tokens=0"});
  const auto bits = run.bits(4);
  const std::size_t lines = run.lines();
  const std::vector<std::string> names = names_in(run.out);
  // Another learning rate: a real start would be rejected.
  EXPECT_THAT(rehearse(run, {"max_steps=4", "learning_rate=1"}, 100), HasSubstr("dry run: 4 steps"));
  EXPECT_EQ(run.bits(4), bits);
  EXPECT_EQ(run.lines(), lines);
  EXPECT_EQ(names_in(run.out), names);
}

TEST(DryRun, FindsWhatWouldEndTheRun) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  EXPECT_THAT(rehearse(run, {"data.train=none.txt"}, 2), HasSubstr("none.txt"));
  EXPECT_THAT(rehearse(run, {"init_from=none"}, 2), HasSubstr("training.init_from: none does not exist"));
  EXPECT_THAT(rehearse(run, {}, 2), HasSubstr("more steps are more exact"));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace octavo_train
