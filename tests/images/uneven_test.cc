// Tests complete runs with batches of different sizes and with samples that cannot be read: weights of
// micro-batches, resuming in the middle of a window, skipped samples, and their log entries.
// SPDX-License-Identifier: MIT
#include "tests/images/image_run.h"
#include "tests/images/task.h"
#include "train/console/console.h"
#include "train/console/signals.h"
#include "train/data/length_buckets.h"
#include "train/run/start.h"

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

// Describes the samples of a test: their lengths, and which of them cannot be read.
struct Samples {
  std::function<double(std::int64_t)> seconds = [](std::int64_t sample) {
    return 1.0 + static_cast<double>(sample * 37 % 64) / 8;
  };
  std::function<bool(std::int64_t)> bad = [](std::int64_t) { return false; };
  std::function<void(std::uint64_t)> see = [](std::uint64_t) {};  // called with each draw read; any thread
  bool plain_loss = false;  // use a loss whose gradients are the mean of value() over the rows

  static double value(std::uint64_t draw) { return 1.0 + static_cast<double>(draw % 7); }
};

class UnevenTask : public ImageTask {
 public:
  UnevenTask(Samples samples, std::shared_ptr<const Batches> batches)
      : samples_(std::move(samples)), batches_(std::move(batches)) {}
  UnevenTask(const Samples& samples, const BatchBudget& budget, std::int64_t window)
      : UnevenTask(samples, std::make_shared<const LengthBuckets>(
                                [samples](std::int64_t sample) {
                                  return ClipCost{samples.seconds(sample), 1};
                                },
                                budget, window)) {}

  Result<TaskData> open(const OpenArgs& args) override {
    auto out = ImageTask::open(args);
    if (out.ok()) out->batches = batches_;
    return out;
  }
  [[nodiscard]] std::unique_ptr<Task> copy_without_model() const override {
    Samples unseen = samples_;
    unseen.see = [](std::uint64_t) {};
    auto out = std::make_unique<UnevenTask>(std::move(unseen), batches_);
    out->set_settings(settings());
    return out;
  }

  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override {
    const auto* plan = dynamic_cast<const LengthBuckets*>(batches_.get());
    if (plan == nullptr) return ImageTask::read(order, first, rows);
    std::vector<std::uint64_t> draws, numbers;
    double length = 0, longest = 0;
    for (const std::uint64_t each : plan->draws(order, first, rows)) {
      const std::int64_t sample = order.sample(each);
      if (samples_.bad(sample)) continue;
      draws.push_back(each);
      numbers.push_back(static_cast<std::uint64_t>(sample));
      length += samples_.seconds(sample);
      longest = std::max(longest, samples_.seconds(sample));
    }
    Batch out = draw(numbers);
    out.draws = std::move(draws);
    out.length = length;
    out.padded_length = longest * static_cast<double>(numbers.size());
    return out;
  }

  TaskModel build(const Settings& settings) override {
    TaskModel out = ImageTask::build(settings);
    weights_ = out.module;
    return out;
  }
  torch::Tensor loss(const Batch& batch, const PassKey& key) override {
    for (const std::uint64_t draw : batch.draws) samples_.see(draw);
    if (!samples_.plain_loss) return ImageTask::loss(batch, key);
    double mean = 0;
    for (const std::uint64_t draw : batch.draws) mean += Samples::value(draw);
    mean /= static_cast<double>(batch.rows());
    torch::Tensor sum = torch::zeros({});
    for (const torch::Tensor& each : weights_->parameters()) sum = sum + each.sum().to(torch::kFloat32);
    return sum * mean;
  }

 private:
  Samples samples_;
  std::shared_ptr<const Batches> batches_;
  std::shared_ptr<torch::nn::Module> weights_;
};

const BatchBudget kBudget{.rows = {}, .seconds = 30.0, .cells = {}};
constexpr std::int64_t kWindow = 100;  // 256 images make windows of 86, 85 and 85

class UnevenRun : public ImageRun {
 public:
  using ImageRun::ImageRun;

  Result<Outcome> go(std::unique_ptr<Task> task, const Words& words = {}) {
    auto config = parse(yaml, "run.yaml", words);
    if (!config.ok()) return config.status();
    const StopSignals signals("");  // forgets a signal of another test
    Recorder listener;
    Heartbeat heartbeat(listener);
    auto run = start_run(*config, heartbeat, Purpose::run, nullptr, std::move(task));
    if (!run.ok()) return run.status();
    auto outcome = (*run)->trainer->run();
    said += listener.said;
    return outcome;
  }
  void finish_with(std::unique_ptr<Task> task, const Words& words = {}) {
    const auto outcome = go(std::move(task), words);
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  }
  void finish_uneven(const Words& words = {}, const Samples& samples = {}) {
    finish_with(std::make_unique<UnevenTask>(samples, kBudget, kWindow), words);
  }
};

// Counts the calls of a task's functions.
struct Calls {
  int opened = 0, built = 0, copied = 0, real_losses = 0, meta_losses = 0;
};

class CountingTask : public ImageTask {
 public:
  CountingTask(Calls& calls, Calls& calls_of_copies) : calls_(calls), calls_of_copies_(calls_of_copies) {}

  Result<TaskData> open(const OpenArgs& args) override {
    ++calls_.opened;
    return ImageTask::open(args);
  }
  [[nodiscard]] std::unique_ptr<Task> copy_without_model() const override {
    ++calls_.copied;
    auto out = std::make_unique<CountingTask>(calls_of_copies_, calls_of_copies_);
    out->set_settings(settings());
    return out;
  }
  TaskModel build(const Settings& settings) override {
    ++calls_.built;
    return ImageTask::build(settings);
  }
  torch::Tensor loss(const Batch& batch, const PassKey& key) override {
    torch::Tensor out = ImageTask::loss(batch, key);
    ++(out.is_meta() ? calls_.meta_losses : calls_.real_losses);
    return out;
  }

 private:
  Calls &calls_, &calls_of_copies_;
};

TEST(Uneven, AForecastLeavesTheRunsTaskAlone) {
  const TempFolder folder;
  Calls calls, of_copies;
  UnevenRun run(folder, "run");
  run.finish_with(std::make_unique<CountingTask>(calls, of_copies), {"max_steps=3", "eval_steps=null"});
  EXPECT_TRUE(run.records("end").at(0).contains("plan")) << "there is a forecast";
  EXPECT_EQ(calls.opened, 1);
  EXPECT_EQ(calls.copied, 1);
  EXPECT_EQ(calls.built, 1);
  EXPECT_EQ(calls.real_losses, 3) << "a step each";
  EXPECT_EQ(calls.meta_losses, 0);
  EXPECT_EQ(of_copies.opened, 0) << "the data is shared";
  EXPECT_EQ(of_copies.built, 1);
  EXPECT_EQ(of_copies.real_losses, 0);
  EXPECT_GT(of_copies.meta_losses, 0);
}

TEST(Uneven, BatchesOfOneSizeAreTheSameRunByEitherWay) {
  const TempFolder folder;
  for (const char* passes : {"gradient_accumulation_steps=1", "gradient_accumulation_steps=3"}) {
    UnevenRun usual(folder, std::string("usual") + passes), own(folder, std::string("own") + passes);
    usual.finish({passes, "max_steps=4"});
    own.finish_with(std::make_unique<UnevenTask>(Samples(), std::make_shared<const EqualBatches>(8)),
                    {passes, "max_steps=4"});
    EXPECT_EQ(own.bits(4), usual.bits(4));
  }
}

class SlowTask : public ImageTask {
 public:
  static constexpr std::chrono::milliseconds kRead{20};

  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override {
    std::this_thread::sleep_for(kRead);
    return ImageTask::read(order, first, rows);
  }
};

// A step reads two batches, 20 ms each. Without workers nothing is prefetched.
TEST(Uneven, ARunSaysHowLongAStepWaitsForData) {
  const TempFolder folder;
  UnevenRun run(folder, "slow");
  run.finish_with(std::make_unique<SlowTask>(), {"gradient_accumulation_steps=2", "logging_steps=3",
                                                 "max_steps=6", "data.dataloader_num_workers=0"});
  const std::vector<Json> lines = run.records("train");
  ASSERT_EQ(lines.size(), 2U);
  double waited = 0;
  for (const Json& line : lines) {
    EXPECT_GE(line["data_waited"].get<double>(), 0.04);
    waited += 3 * line["data_waited"].get<double>();
  }
  EXPECT_LT(waited, run.records("end").at(0)["seconds"].get<double>());
}

TEST(Uneven, ResumingInTheMiddleOfAWindowIsTheSameRun) {
  const TempFolder folder;
  for (const char* dtype : {"compute_dtype=float32", "compute_dtype=bfloat16"}) {
    const Words words = {"gradient_accumulation_steps=2", "data.dataloader_num_workers=2", dtype};
    UnevenRun whole(folder, std::string("whole") + dtype);
    whole.finish_uneven(words);
    for (const std::int64_t from : {4, 8}) {
      ASSERT_NE(whole.state(from)["sampler"]["draws"].get<int>(), 86);
      Words again = words;
      again[1] = "data.dataloader_num_workers=0";
      again.push_back("resume_from_checkpoint=" + whole.checkpoint(from));
      UnevenRun resumed(folder, dtype + std::to_string(from));
      resumed.finish_uneven(again);
      EXPECT_EQ(resumed.bits(12), whole.bits(12)) << dtype << " from step " << from;
      EXPECT_EQ(resumed.state(12), whole.state(12));
    }
  }
}

TEST(Uneven, MoreSamplesBeginANewOrderInTheMiddleOfAWindow) {
  const TempFolder folder;
  UnevenRun run(folder, "run");
  run.finish_uneven({"max_samples=100", "max_steps=4"});
  const auto at = run.state(4)["sampler"]["draws"].get<std::uint64_t>();
  EXPECT_LT(at, 100U);
  run.finish_uneven({"max_samples=200"});
  const Json sampler = run.state(8)["sampler"];
  EXPECT_EQ(sampler["samples"], 200);
  EXPECT_EQ(sampler["start"], at);
  UnevenRun again(folder, "again");
  again.finish_uneven({"max_samples=200", "resume_from_checkpoint=" + run.checkpoint(8)});
  EXPECT_EQ(again.bits(12), run.bits(12));
}

TEST(Uneven, AnEpochTrainsOnEverySampleOnce) {
  const TempFolder folder;
  UnevenRun run(folder, "run");
  std::mutex mutex;
  std::map<std::uint64_t, int> seen;
  Samples samples;
  samples.see = [&](std::uint64_t draw) {
    const std::lock_guard lock(mutex);
    ++seen[draw];
  };
  run.finish_uneven({"max_steps=null", "num_train_epochs=1", "eval_steps=null"}, samples);
  EXPECT_EQ(seen.size(), 256U);
  for (const auto& [draw, times] : seen) EXPECT_EQ(times, 1) << draw;
  const Json end = run.records("train").back();
  EXPECT_EQ(end["images"], 256);
  const std::int64_t steps = run.records("start").at(0)["steps"];
  EXPECT_EQ(run.records("end").at(0)["step"], steps);
  EXPECT_EQ(run.state(steps)["sampler"]["draws"], 256);
}

TEST(Uneven, TheLogTellsRowsAndPadding) {
  const TempFolder folder;
  UnevenRun run(folder, "run");
  run.finish_uneven({"gradient_accumulation_steps=2"});
  EXPECT_FALSE(run.records("start").at(0).contains("batch_images")) << "there is no such number";
  double images = 0;
  for (const Json& record : run.records("train")) {
    images += 4 * record["rows"].get<double>();  // two steps of two micro-batches each
    EXPECT_NEAR(record["images"].get<double>(), images, 1e-6);
    EXPECT_GT(record["padding"].get<double>(), 0.0);
    EXPECT_LT(record["padding"].get<double>(), 0.2);
    EXPECT_FALSE(record.contains("left_out"));
  }
  EXPECT_THAT(run.said, AllOf(HasSubstr("  rows "), HasSubstr("  padding "), Not(HasSubstr("left out"))));
  EXPECT_FALSE(run.state(12).contains("left_out"));
}

// The expected result of a step: its rows, and the norm of its gradients.
struct Expected {
  std::int64_t rows = 0;
  double norm = 0;
};

// Computes the first `steps` steps of `passes` micro-batches each with a separate LengthBuckets.
std::vector<Expected> expected_steps(const Samples& samples, std::int64_t passes, std::int64_t steps,
                                     double weights) {
  const LengthBuckets plan(
      [&](std::int64_t sample) {
        return ClipCost{samples.seconds(sample), 1};
      },
      kBudget, kWindow);
  const Order order(256, static_cast<std::uint64_t>(parse(kTask, "t")->settings.data.seed), 0);
  std::vector<Expected> out;
  std::uint64_t position = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    Expected each;
    double sum = 0;
    for (std::int64_t i = 0; i < passes; ++i) {
      const std::int64_t rows = plan.rows_at(order, position);
      for (const std::uint64_t draw : plan.draws(order, position, rows)) {
        if (samples.bad(order.sample(draw))) continue;
        sum += Samples::value(draw);
        ++each.rows;
      }
      position += static_cast<std::uint64_t>(rows);
    }
    each.norm = each.rows > 0 ? sum / static_cast<double>(each.rows) * std::sqrt(weights) : 0;
    out.push_back(each);
  }
  return out;
}

// Micro-batches have 3 to 30 rows, some have none. Each is weighted by its rows, so the step must equal that
// of one large batch.
TEST(Uneven, PassesCountByTheirRows) {
  Samples samples;
  samples.plain_loss = true;
  for (const bool some_bad : {false, true}) {
    if (some_bad) samples.bad = [&](std::int64_t sample) { return samples.seconds(sample) > 5; };
    for (const char* dtype : {"float32", "bfloat16"}) {
      const TempFolder folder;
      UnevenRun run(folder, "run");
      run.finish_uneven({"gradient_accumulation_steps=3", "logging_steps=1", "max_steps=6", "eval_steps=null",
                         "max_grad_norm=0", std::string("compute_dtype=") + dtype},
                        samples);
      const double weights = run.records("start").at(0)["params"];
      const std::vector<Expected> steps = expected_steps(samples, 3, 6, weights);
      const std::vector<Json> log = run.records("train");
      ASSERT_EQ(log.size(), 6U);
      double images = 0;
      EXPECT_EQ(run.state(6).contains("left_out"), some_bad);
      for (std::size_t i = 0; i < 6; ++i) {
        images += static_cast<double>(steps[i].rows);
        EXPECT_EQ(log[i]["images"].get<double>(), images);
        if (steps[i].rows == 0) continue;  // no update, so no numbers of an update
        // The tolerance is three bf16 roundings (2^-9 each), which apply to bf16 weights; fp32 stays well
        // below.
        EXPECT_NEAR(log[i]["grad_norm"].get<double>(), steps[i].norm, 0x1p-7 * steps[i].norm)
            << "step " << i + 1 << " in " << dtype;
      }
    }
  }
}

TEST(Uneven, WhatCannotBeReadIsLeftOutCountedAndSaved) {
  const TempFolder folder;
  Samples samples;
  samples.bad = [](std::int64_t sample) { return sample % 5 == 0; };
  UnevenRun run(folder, "run");
  run.finish_uneven({}, samples);
  const Json state = run.state(12);
  const auto left_out = state["left_out"]["samples"].get<std::int64_t>();
  EXPECT_GT(left_out, 5);
  EXPECT_EQ(state["left_out"]["passes"], 0);
  EXPECT_EQ(state["sampler"]["draws"].get<std::int64_t>() - left_out, state["units"].get<std::int64_t>());
  EXPECT_EQ(run.records("train").back()["left_out"], left_out);
  EXPECT_EQ(run.records("end").at(0)["left_out"], left_out);
  EXPECT_THAT(run.said,
              AllOf(HasSubstr("  left out "),
                    HasSubstr(std::to_string(left_out) + " samples could not be read and were skipped")));
  UnevenRun resumed(folder, "resumed");
  resumed.finish_uneven({"resume_from_checkpoint=" + run.checkpoint(4)}, samples);
  EXPECT_EQ(resumed.bits(12), run.bits(12));
  EXPECT_EQ(resumed.state(12), state);
}

// Draws 0 to 19 are bad. Windows have one batch, so the first five steps have nothing to train on.
TEST(Uneven, AStepWithoutSamplesMakesNoUpdate) {
  const TempFolder folder;
  std::set<std::int64_t> first;
  const Order order(256, static_cast<std::uint64_t>(parse(kTask, "t")->settings.data.seed), 0);
  for (std::uint64_t draw = 0; draw < 20; ++draw) first.insert(order.sample(draw));
  Samples samples;
  samples.bad = [&](std::int64_t sample) { return first.contains(sample); };
  const BatchBudget four{.rows = 4, .seconds = {}, .cells = {}};
  const auto task = [&] { return std::make_unique<UnevenTask>(samples, four, 4); };
  UnevenRun run(folder, "run");
  run.finish_with(task(), {"max_steps=8", "logging_steps=1", "save_steps=4"});
  EXPECT_EQ(run.state(8)["units"], 12);
  EXPECT_EQ(run.state(8)["left_out"], Json::parse(R"({"samples": 20, "passes": 5})"));
  EXPECT_EQ(run.state(8)["skipped"]["all"], 0) << "their gradients were not bad";
  const std::vector<Json> warnings = run.records("warning");
  ASSERT_EQ(warnings.size(), 5U);
  EXPECT_EQ(warnings[4]["message"], "step 5 made no update: none of its samples could be read");
  EXPECT_EQ(run.counter(4, "block0.norm"), 0) << "no pass was made";
  EXPECT_EQ(run.counter(8, "block0.norm"), 3);
  EXPECT_EQ(run.records("memory").at(0)["step"], 6) << "the second step of the process had no memory to show";
  UnevenRun resumed(folder, "resumed");
  resumed.finish_with(task(), {"max_steps=8", "resume_from_checkpoint=" + run.checkpoint(4)});
  EXPECT_EQ(resumed.bits(8), run.bits(8));
}

TEST(Uneven, TenStepsWithoutSamplesEndTheRun) {
  const TempFolder folder;
  Samples samples;
  samples.bad = [](std::int64_t) { return true; };
  UnevenRun run(folder, "run");
  const auto outcome = run.go(std::make_unique<UnevenTask>(samples, kBudget, kWindow), {"eval_steps=null"});
  EXPECT_THAT(outcome.status().message(),
              AllOf(HasSubstr("10 steps in a row had no sample that could be read, the last one step 10"),
                    HasSubstr("check the data"), HasSubstr("checkpoint-")));
}

TEST(Uneven, WhatReadThrowsEndsTheRunAndACheckpointIsLeft) {
  const TempFolder folder;
  for (const char* workers : {"0", "2"}) {
    std::atomic<int> reads = 0;
    Samples samples;
    samples.see = [&](std::uint64_t) {
      if (++reads > 20) throw std::runtime_error("train.jsonl:17: a.wav is truncated");
    };
    UnevenRun run(folder, std::string("run") + workers);
    const auto outcome = run.go(std::make_unique<UnevenTask>(samples, kBudget, kWindow),
                                {std::string("data.dataloader_num_workers=") + workers, "save_steps=1"});
    EXPECT_THAT(outcome.status().message(),
                AllOf(HasSubstr("train.jsonl:17: a.wav is truncated"), Not(HasSubstr("LibTorch"))));
    EXPECT_EQ(run.records("end").at(0)["reason"], "failed");
  }
}

}  // namespace
}  // namespace octavo_train
