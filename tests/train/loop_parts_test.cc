// Tests small parts of the training loop: learning rates, the metrics of finished steps, and random numbers
// that depend on the step.
// SPDX-License-Identifier: MIT
#include "tests/train/parts_support.h"
#include "train/device/device.h"
#include "train/optim/param_groups.h"
#include "train/run/step.h"

#include <cmath>

namespace octavo_train {
namespace {

const Words kSchedulers = {"cosine", "linear", "constant", "wsd"};

// Returns settings with learning_rate 1, so that rates are fractions of it.
TrainingSettings scheduled(const std::string& scheduler, Words words = {}) {
  words.insert(words.begin(), {"learning_rate=1", "min_lr=0.1", "lr_scheduler=" + scheduler});
  return training(words);
}

TEST(Schedule, RisesOverTheWarmup) {
  for (const std::string& scheduler : kSchedulers) {
    const TrainingSettings t = scheduled(scheduler, {"warmup_steps=10"});
    for (int step = 1; step <= 10; ++step) EXPECT_DOUBLE_EQ(learning_rate(t, step, 110), step / 10.0);
    EXPECT_DOUBLE_EQ(learning_rate(t, 11, 110), 1.0) << scheduler;
    EXPECT_DOUBLE_EQ(learning_rate(scheduled(scheduler), 1, 110), 1.0) << scheduler << ", no warmup";
  }
}

TEST(Schedule, EveryCourse) {
  const Words warm = {"warmup_steps=10"};
  const TrainingSettings linear = scheduled("linear", warm), cosine = scheduled("cosine", warm);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 61, 110), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 61, 110), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 36, 110), 1.0 - 0.9 * 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 36, 110), 0.55 + 0.45 * std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("constant", warm), 110, 110), 1.0);
  // A tenth of 110 steps is 11, so the decay begins after step 100.
  const TrainingSettings wsd = scheduled("wsd", warm);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 100, 110), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 101, 110), 1.0 - 0.9 / 11);
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("wsd", {"decay_steps=50"}), 86, 110), 0.55);
}

TEST(Schedule, TheLastStepIsOneBeforeTheLeastRate) {
  const double least = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("linear"), 100, 100), 1.0 - 0.9 * 0.99);
  EXPECT_NEAR(learning_rate(scheduled("cosine"), 100, 100), least + 0.45 * (1 - std::cos(M_PI / 100)), 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("wsd"), 100, 100), 1.0 - 0.9 * 0.9);
  for (const std::string scheduler : {"linear", "cosine", "wsd"}) {
    EXPECT_DOUBLE_EQ(learning_rate(scheduled(scheduler), 101, 100), least) << scheduler;
    EXPECT_DOUBLE_EQ(learning_rate(scheduled(scheduler), 1000, 100), least) << scheduler << ", beyond";
    EXPECT_DOUBLE_EQ(learning_rate(scheduled(scheduler), 1, 1), 1.0) << scheduler << ", a single step";
  }
}

TEST(Schedule, Edges) {
  for (const std::string& scheduler : kSchedulers) {
    // The run ends before the warmup ends, or together with it.
    EXPECT_DOUBLE_EQ(learning_rate(scheduled(scheduler, {"warmup_steps=200"}), 100, 100), 0.5) << scheduler;
    EXPECT_DOUBLE_EQ(learning_rate(scheduled(scheduler, {"warmup_steps=100"}), 100, 100), 1.0) << scheduler;
    // A min_lr above learning_rate, which no config allows, does not raise the rate.
    TrainingSettings above = scheduled(scheduler);
    above.min_lr = 2.0;
    for (const int step : {1, 50, 100, 101})
      EXPECT_DOUBLE_EQ(learning_rate(above, step, 100), 1.0) << scheduler;
  }
  // A decay longer than the run is cut to the steps after the warmup, like the linear schedule.
  const TrainingSettings longer = scheduled("wsd", {"decay_steps=500", "warmup_steps=10"});
  const TrainingSettings linear = scheduled("linear", {"warmup_steps=10"});
  for (const int step : {5, 10, 11, 60, 100})
    EXPECT_DOUBLE_EQ(learning_rate(longer, step, 100), learning_rate(linear, step, 100)) << step;
}

TEST(StepMetrics, KeepsOrderAndDepth) {
  StepMetrics readout(torch::kCPU, 2);
  const auto number = [](double value) { return torch::tensor(static_cast<float>(value)); };
  const auto push = [&](int step) {
    readout.push(step, number(step / 8.0), number(3.0 * step), torch::tensor(step % 2, torch::kUInt8),
                 step == 4 ? torch::full({1}, 4.0F) : torch::Tensor());
  };
  EXPECT_FALSE(readout.pop(true));
  push(1), push(2);
  EXPECT_FALSE(readout.pop(false)) << "no more than the depth";
  push(3), push(4);
  for (int step = 1; step <= 4; ++step) {
    const auto numbers = readout.pop(/*drain=*/step > 2);
    ASSERT_TRUE(numbers) << step;
    EXPECT_EQ(numbers->step, step);
    EXPECT_EQ(numbers->loss, step / 8.0);
    EXPECT_EQ(numbers->grad_norm, step == 4 ? 3.0 : 3.0 * step) << "without the scale";
    EXPECT_EQ(numbers->loss_scale, step == 4 ? 4.0 : 0.0);
    EXPECT_EQ(numbers->skipped, step % 2 == 1);
    if (step == 2) {
      EXPECT_FALSE(readout.pop(false));
    }
  }
  EXPECT_FALSE(readout.pop(true));
}

// Changing a tensor after a push, as a loss scale does, does not change the pushed value.
TEST(StepMetrics, CopiesWhatItIsGiven) {
  StepMetrics readout(torch::kCPU);
  const torch::Tensor loss = torch::tensor(2.0F), scale = torch::full({1}, 8.0F);
  readout.push(1, loss, loss, torch::zeros({}), scale);
  loss.fill_(5.0F), scale.fill_(4.0F);
  const auto numbers = readout.pop(true);
  ASSERT_TRUE(numbers);
  EXPECT_EQ(numbers->loss, 2.0);
  EXPECT_EQ(numbers->loss_scale, 8.0);
}

TEST(SeedRandom, FollowsFromSeedStepAndPass) {
  const auto numbers = [](std::int64_t seed, std::int64_t step, std::int64_t pass) {
    seed_random(seed, step, pass);
    return torch::randn({8});
  };
  const torch::Tensor first = numbers(1337, 5, 1);
  torch::rand({100});  // any numbers drawn before
  EXPECT_TRUE(torch::equal(numbers(1337, 5, 1), first));
  // Neighbouring numbers, and the same three numbers in another order.
  std::vector<torch::Tensor> all;
  for (std::int64_t seed = 0; seed < 4; ++seed)
    for (std::int64_t step = 0; step < 4; ++step)
      for (std::int64_t pass = 0; pass < 4; ++pass) all.push_back(numbers(seed, step, pass));
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) ASSERT_FALSE(torch::equal(all[i], all[j])) << i << ' ' << j;
}

// A skipped step leaves the buffers unchanged; a good step keeps its update.
TEST(BufferSnapshot, UndoesWhatASkippedStepDid) {
  torch::nn::BatchNorm1d norm(3);
  NamedTensors buffers;
  for (const auto& each : norm->named_buffers()) buffers.emplace_back(each.key(), each.value());
  BufferSnapshot keeper(buffers);
  const auto step = [&](float x, std::uint8_t skipped) {
    keeper.save();
    norm(torch::full({4, 3}, x));
    keeper.restore_if(torch::full({}, skipped, torch::kUInt8));
  };
  step(1.0F, 0);
  const torch::Tensor mean = norm->running_mean.clone(), var = norm->running_var.clone();
  EXPECT_TRUE(mean.allclose(torch::full({3}, 0.1))) << mean;
  step(std::nanf(""), 1);
  EXPECT_TRUE(norm->running_mean.equal(mean) && norm->running_var.equal(var));
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 1);
  step(1.0F, 0);
  EXPECT_FALSE(norm->running_mean.equal(mean));
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 2);
}

}  // namespace
}  // namespace octavo_train
