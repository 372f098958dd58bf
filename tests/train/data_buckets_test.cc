// Tests batches of clips of similar length: every draw occurs once, budgets are kept, batches are the same
// from any position and on any thread, and there is little padding.
// SPDX-License-Identifier: MIT
#include "train/config/config.h"
#include "train/data/length_buckets.h"
#include "train/data/mix.h"
#include "train/data/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>

namespace octavo_train {
namespace {

// Returns a length of 1 to 20 seconds, and a number of tokens that follows it loosely.
ClipCost cost_of(std::int64_t sample) {
  const std::uint64_t noise = mix(static_cast<std::uint64_t>(sample) * kGoldenGamma + 5);
  const double seconds = 1 + static_cast<double>(noise % 19000) / 1000;
  const auto tokens = static_cast<std::int64_t>(seconds * 3) + static_cast<std::int64_t>(noise >> 60);
  return {seconds, static_cast<std::int64_t>(seconds * 12.5) * (tokens + 1)};
}

struct Found {
  std::vector<std::uint64_t> begins;
  std::vector<std::vector<std::uint64_t>> batches;  // draws
};

// Returns all batches of the positions [order.start(), until), one after the other.
Found batches_of(const LengthBuckets& plan, const Order& order, std::uint64_t until) {
  Found out;
  for (std::uint64_t position = order.start(); position < until;) {
    const std::int64_t rows = plan.rows_at(order, position);
    out.begins.push_back(position);
    out.batches.push_back(plan.draws(order, position, rows));
    EXPECT_EQ(out.batches.back().size(), static_cast<std::size_t>(rows));
    position += static_cast<std::uint64_t>(rows);
  }
  return out;
}

std::vector<std::uint64_t> sorted_draws(const Found& found) {
  std::vector<std::uint64_t> out;
  for (const auto& batch : found.batches) out.insert(out.end(), batch.begin(), batch.end());
  std::sort(out.begin(), out.end());
  return out;
}

void expect_within(const BatchBudget& budget, const Order& order, const std::vector<std::uint64_t>& draws) {
  double longest = 0;
  std::int64_t cells = 0;
  for (const std::uint64_t draw : draws) {
    const ClipCost cost = cost_of(order.sample(draw));
    longest = std::max(longest, cost.seconds);
    cells += cost.cells;
  }
  const auto rows = static_cast<std::int64_t>(draws.size());
  EXPECT_LE(rows, budget.rows.value_or(rows));
  if (rows == 1 && !budget.fits(cost_of(order.sample(draws[0])))) return;
  EXPECT_LE(static_cast<double>(rows) * longest, budget.seconds.value_or(1e9));
  EXPECT_LE(cells, budget.cells.value_or(cells));
}

const BatchBudget kSeconds{.rows = {}, .seconds = 90.0, .cells = {}};
const BatchBudget kCells{.rows = {}, .seconds = {}, .cells = 20000};
const BatchBudget kCount{.rows = 8, .seconds = {}, .cells = {}};
const BatchBudget kAll{.rows = 12, .seconds = 100.0, .cells = 30000};

TEST(Buckets, EveryDrawOfAnEpochOccursOnceAndBudgetsAreKept) {
  for (const BatchBudget& budget : {kSeconds, kCells, kCount, kAll}) {
    for (const std::int64_t samples : {1, 7, 100, 333}) {
      for (const std::int64_t window : {1, 10, 100, 1000}) {
        const LengthBuckets plan(cost_of, budget, window);
        const std::uint64_t start = 41;
        const Order order(samples, 3, start);
        const std::uint64_t end = start + 2 * static_cast<std::uint64_t>(samples);
        const Found found = batches_of(plan, order, end);
        std::vector<std::uint64_t> all;
        for (std::uint64_t draw = start; draw < end; ++draw) all.push_back(draw);
        ASSERT_EQ(sorted_draws(found), all) << samples << " samples, windows of " << window;
        for (const auto& batch : found.batches) {
          expect_within(budget, order, batch);
          for (const std::uint64_t draw : batch) ASSERT_EQ(order.epoch(draw), order.epoch(batch[0]));
        }
      }
    }
  }
}

// 95 draws in windows of at most 10 make ten windows of 9 or 10. Each window is a range of draws and of
// positions.
TEST(Buckets, AWindowHasTheDrawsOfItsPositions) {
  const LengthBuckets plan(cost_of, kCount, 10);
  const Order order(95, 3, 7);
  const Found found = batches_of(plan, order, 7 + 95);
  std::set<std::uint64_t> seen;
  std::vector<std::size_t> windows;
  std::size_t size = 0;
  std::uint64_t begin = 7;
  for (const auto& batch : found.batches) {
    size += batch.size();
    seen.insert(batch.begin(), batch.end());
    if (*seen.begin() == begin && *seen.rbegin() == begin + size - 1) {  // the window is complete
      windows.push_back(size);
      begin += size, size = 0;
      seen.clear();
    }
  }
  EXPECT_EQ(windows, (std::vector<std::size_t>{10, 10, 10, 10, 10, 9, 9, 9, 9, 9}));
}

TEST(Buckets, AnyPositionTellsTheEndOfItsBatch) {
  const LengthBuckets plan(cost_of, kSeconds, 50);
  const Order order(120, 3, 0);
  const Found found = batches_of(plan, order, 240);
  for (std::size_t i = 0; i < found.begins.size(); ++i) {
    const std::uint64_t end = found.begins[i] + found.batches[i].size();
    for (std::uint64_t at = found.begins[i]; at < end; ++at) {
      const LengthBuckets fresh(cost_of, kSeconds, 50);  // a run that resumes at `at`
      ASSERT_EQ(fresh.rows_at(order, at), static_cast<std::int64_t>(end - at));
      ASSERT_EQ(fresh.draws(order, at, 1)[0], found.batches[i][at - found.begins[i]]);
    }
  }
  const std::vector<std::uint64_t> across = plan.draws(order, 0, 240);
  EXPECT_EQ(std::set(across.begin(), across.end()).size(), 240U);
}

TEST(Buckets, NeighboursAndTheOrderOfBatchesAreRandom) {
  const LengthBuckets plan(cost_of, kSeconds, 1000);
  const Order order(400, 3, 0);
  const auto pairs = [&](std::uint64_t from) {
    std::set<std::pair<std::int64_t, std::int64_t>> out;
    const Found found = batches_of(plan, order, from + 400);
    for (std::size_t i = 0; i < found.batches.size(); ++i) {
      if (found.begins[i] < from) continue;
      for (const std::uint64_t a : found.batches[i])
        for (const std::uint64_t b : found.batches[i])
          if (order.sample(a) < order.sample(b)) out.emplace(order.sample(a), order.sample(b));
    }
    return out;
  };
  const auto first = pairs(0), second = pairs(400);
  std::size_t same = 0;
  for (const auto& each : first) same += second.count(each);
  EXPECT_LT(static_cast<double>(same), 0.7 * static_cast<double>(first.size()));
  // Long and short batches alternate. In a sorted order the size would never change direction.
  int turns = 0;
  const Found found = batches_of(plan, order, 400);
  for (std::size_t i = 2; i < found.batches.size(); ++i) {
    const auto rows = [&](std::size_t j) { return static_cast<int>(found.batches[j].size()); };
    turns += (rows(i) - rows(i - 1)) * (rows(i - 1) - rows(i - 2)) < 0 ? 1 : 0;
  }
  EXPECT_GT(turns, static_cast<int>(found.batches.size()) / 4);
}

TEST(Buckets, PaddingIsSmallAndTheSurveyCountsIt) {
  const LengthBuckets plan(cost_of, kSeconds, 1000);
  const Order order(3000, 3, 50);
  const LengthBuckets::Survey survey = plan.survey(order);
  const Found found = batches_of(plan, order, 50 + 3000);
  EXPECT_EQ(survey.batches, static_cast<std::int64_t>(found.batches.size()));
  double seconds = 0, padded = 0, largest = 0;
  std::size_t least = 1000, most = 0, at = 0;
  for (std::size_t i = 0; i < found.batches.size(); ++i) {
    double longest = 0;
    for (const std::uint64_t draw : found.batches[i]) {
      const double each = cost_of(order.sample(draw)).seconds;
      seconds += each;
      longest = std::max(longest, each);
    }
    const double here = longest * static_cast<double>(found.batches[i].size());
    padded += here;
    if (here > largest) largest = here, at = i;
    least = std::min(least, found.batches[i].size());
    most = std::max(most, found.batches[i].size());
  }
  EXPECT_NEAR(survey.seconds, seconds, 1e-6);
  EXPECT_NEAR(survey.padding(), 1 - seconds / padded, 1e-9);
  EXPECT_LT(survey.padding(), 0.06) << "in batches by chance it would be a third";
  EXPECT_EQ(survey.least_rows, static_cast<std::int64_t>(least));
  EXPECT_EQ(survey.most_rows, static_cast<std::int64_t>(most));
  EXPECT_EQ(survey.largest, found.begins[at]);
  EXPECT_EQ(survey.largest_rows, static_cast<std::int64_t>(found.batches[at].size()));
  EXPECT_EQ(survey.largest_seconds, largest);
  EXPECT_GT(survey.largest_seconds, 85) << "budgets are used";
}

TEST(Buckets, ByCountAllBatchesButOneOfAWindowAreFull) {
  const LengthBuckets plan(cost_of, kCount, 100);
  const Found found = batches_of(plan, Order(205, 1, 0), 205);  // windows of 69, 68, 68
  std::map<std::size_t, int> sizes;
  for (const auto& batch : found.batches) ++sizes[batch.size()];
  EXPECT_EQ(sizes, (std::map<std::size_t, int>{{4, 2}, {5, 1}, {8, 24}}));
}

TEST(Buckets, AClipBeyondTheBudgetIsAloneAndTold) {
  const auto cost = [](std::int64_t sample) {
    if (sample == 3) return ClipCost{33.25, 10};
    if (sample == 4) return ClipCost{1, 5000};
    return ClipCost{2, 10};
  };
  const BatchBudget budget{.rows = {}, .seconds = 20.0, .cells = 1000};
  const LengthBuckets plan(cost, budget, 100);
  const Order order(30, 1, 0);
  int alone = 0;
  for (const auto& batch : batches_of(plan, order, 30).batches) {
    EXPECT_LE(batch.size(), 10U);
    for (const std::uint64_t draw : batch) {
      if (plan.budget().fits(cost(order.sample(draw)))) continue;
      EXPECT_EQ(batch.size(), 1U);
      ++alone;
    }
  }
  EXPECT_EQ(alone, 2);
  EXPECT_EQ(budget.excess_text(cost(3)), "33.25 s, but a batch has 20 s (data.batch_seconds)");
  EXPECT_EQ(budget.excess_text(cost(4)),
            "5000 cells of the loss, but a batch has 1000 (data.batch_lattice_cells)");
  EXPECT_TRUE(budget.fits({20, 1000}));
}

TEST(Buckets, ThreadsShareWindowsThatArePlannedOnce) {
  std::atomic<int> asked = 0;
  const LengthBuckets plan(
      [&](std::int64_t sample) {
        ++asked;
        return cost_of(sample);
      },
      kSeconds, 100);
  const LengthBuckets quiet(cost_of, kSeconds, 100);
  const Order order(400, 9, 0);
  const Found expected = batches_of(quiet, order, 400);
  std::vector<Found> got(4);
  std::vector<std::thread> threads;
  for (Found& each : got) threads.emplace_back([&] { each = batches_of(plan, order, 400); });
  for (std::thread& thread : threads) thread.join();
  for (const Found& each : got) {
    EXPECT_EQ(each.begins, expected.begins);
    EXPECT_EQ(each.batches, expected.batches);
  }
  EXPECT_EQ(asked, 400);
  batches_of(plan, order, 2000);  // other windows evict the first ones: memory does not grow
  asked = 0;
  (void)plan.rows_at(order, 0);
  EXPECT_EQ(asked, 100);
}

TEST(Buckets, WhatTheCostThrowsIsTheCallers) {
  const LengthBuckets plan(
      [](std::int64_t sample) -> ClipCost {
        if (sample == 50) throw std::runtime_error("line 50");
        return {1, 1};
      },
      kSeconds, 10);
  const Order order(60, 1, 0);
  EXPECT_THROW((void)plan.count_batches(order, 60), std::runtime_error);
  EXPECT_THROW((void)plan.survey(order), std::runtime_error);
  EXPECT_THROW((void)batches_of(plan, order, 60), std::runtime_error);
}

TEST(Buckets, CountsWhatRowsGive) {
  const LengthBuckets plan(cost_of, kSeconds, 64);
  for (const std::uint64_t start : {0U, 1000U}) {
    const Order order(150, 3, start);
    for (const std::uint64_t positions : {1U, 63U, 75U, 76U, 150U, 151U, 400U}) {
      const Batches::BatchCount count = plan.count_batches(order, positions);
      const Batches::BatchCount slow = plan.Batches::count_batches(order, positions);
      EXPECT_EQ(count.batches, slow.batches) << positions;
      EXPECT_EQ(count.end, slow.end) << positions;
      EXPECT_GE(count.end, start + positions);
    }
  }
  const EqualBatches equal(4);
  for (const std::uint64_t positions : {0U, 1U, 8U, 9U}) {
    const Order order(150, 3, 5);
    EXPECT_EQ(equal.count_batches(order, positions).batches,
              equal.Batches::count_batches(order, positions).batches);
    EXPECT_EQ(equal.count_batches(order, positions).end, equal.Batches::count_batches(order, positions).end);
  }
}

// Checkpoints store positions, so a different plan of the same window would change a resumed run.
TEST(Buckets, ThePlanOfAWindowStaysWhatItIs) {
  const LengthBuckets plan(cost_of, kAll, 100);
  const Order order(250, 1337, 10);
  std::uint64_t sum = 0;
  for (std::uint64_t position = 10; position < 510;) {
    const std::int64_t rows = plan.rows_at(order, position);
    for (const std::uint64_t draw : plan.draws(order, position, rows)) sum = mix(sum + kGoldenGamma * draw);
    sum = mix(sum + static_cast<std::uint64_t>(rows));
    position += static_cast<std::uint64_t>(rows);
  }
  EXPECT_EQ(sum, 17955299380397872360U);
}

std::vector<Stage> staged(std::vector<std::string> words, const Batches* own, std::int64_t samples) {
  const auto config = parse("", "test", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const auto out = plan_stages(config->settings.data, config->settings.training, samples, own);
  EXPECT_TRUE(out.ok()) << out.status().message();
  return *out;
}

// An epoch's steps are its batches, two per step. A stage begins where the previous one ended.
TEST(Buckets, EpochsAreCountedInBatches) {
  const LengthBuckets plan(cost_of, kSeconds, 64);
  const std::vector<std::string> words = {"gradient_accumulation_steps=2", "data.seed=3"};
  auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more);
    return all;
  };
  const auto config = parse("", "test", words);
  const auto seed = static_cast<std::uint64_t>(config->settings.data.seed);
  const auto halves = [](std::int64_t batches) { return (batches + 1) / 2; };
  const Order small(100, seed, 0);
  const std::int64_t first = halves(plan.count_batches(small, 200).batches);
  EXPECT_EQ(staged(with({"num_train_epochs=2"}), &plan, 100), (std::vector<Stage>{{100, 0, first}}));
  std::uint64_t position = 0;
  for (std::int64_t i = 0; i < 2 * first; ++i)
    position += static_cast<std::uint64_t>(plan.rows_at(small, position));
  const std::int64_t second = halves(plan.count_batches(Order(300, seed, position), 600).batches);
  EXPECT_EQ(staged(with({"num_train_epochs=2", "stages=[100, -1]"}), &plan, 300),
            (std::vector<Stage>{{100, 0, first}, {300, first, first + second}}));
  EXPECT_EQ(staged(with({"max_steps=9", "stages=[100, -1]"}), &plan, 300),
            (std::vector<Stage>{{100, 0, 4}, {300, 4, 9}}));
  const EqualBatches fours(4);
  EXPECT_EQ(staged(with({"num_train_epochs=1.5", "per_device_train_batch_size=4"}), &fours, 90),
            staged(with({"num_train_epochs=1.5", "per_device_train_batch_size=4"}), nullptr, 90));
  const auto many = parse("", "test", with({"num_train_epochs=1e9"}));
  EXPECT_EQ(plan_stages(many->settings.data, many->settings.training, 100, &plan).status().message(),
            "training.num_train_epochs: got 1e+09, but more than 8589934592 samples are not planned into "
            "batches before a run begins; use max_steps");
}

}  // namespace
}  // namespace octavo_train
