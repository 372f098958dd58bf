// Tests that batches are the sampler's windows, for any number of workers, from any draw on, through resets
// and destruction.
// SPDX-License-Identifier: MIT
#include "train/data/prefetch.h"

#include "tests/train/text_files.h"
#include "train/tasks/text/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>

namespace octavo_train {
namespace {

constexpr std::int64_t kBlock = 16, kRows = 3;
constexpr std::uint64_t kBatches = 40;  // several epochs
using Bytes = std::vector<std::uint8_t>;

struct Batch {
  std::uint64_t first_draw = 0;
  Bytes bytes;
};
using BatchLoader = Prefetch<Batch>;

std::int64_t three(std::uint64_t /*position*/) { return kRows; }

BatchLoader::Source maker(const Sampler& sampler) {
  return {three, [sampler](std::uint64_t first_draw, std::int64_t rows) {
            EXPECT_EQ(rows, kRows);
            Batch out{first_draw, Bytes(kRows * (kBlock + 1))};
            for (std::size_t row = 0; row < kRows; ++row)
              sampler.read(first_draw + row, std::span(out.bytes).subspan(row * (kBlock + 1), kBlock + 1));
            return out;
          }};
}

class Loader : public ::testing::TestWithParam<int> {
 protected:
  Loader() : text_(numbered(997)) {
    const std::vector<std::string> paths = {files_.write("a", text_.substr(0, 300)),
                                            files_.write("b", text_.substr(300))};
    auto corpus = TextCorpus::open(paths);
    EXPECT_TRUE(corpus.ok());
    range_ = {*corpus, 7, 990};
  }

  [[nodiscard]] Sampler sampler(std::int64_t samples = 61, std::uint64_t start = 0) const {
    return {range_, kBlock, Order(samples, 1337, start)};
  }

  [[nodiscard]] BatchLoader start(const Sampler& sampler, std::uint64_t first_draw) const {
    return BatchLoader::start(maker(sampler), first_draw, GetParam()).value();
  }

  // Returns the bytes that a batch must hold, read directly from the text.
  [[nodiscard]] Bytes expected(const Sampler& sampler, std::uint64_t first_draw) const {
    Bytes out;
    for (std::uint64_t row = 0; row < kRows; ++row) {
      const std::string window =
          text_.substr(static_cast<std::size_t>(sampler.offset(first_draw + row)), kBlock + 1);
      out.insert(out.end(), window.begin(), window.end());
    }
    return out;
  }

  void expect_batches(BatchLoader& loader, const Sampler& sampler, std::uint64_t first_draw,
                      std::uint64_t count) const {
    for (std::uint64_t i = 0; i < count; ++i) {
      const Batch batch = loader.next();
      ASSERT_EQ(batch.first_draw, first_draw + i * kRows);
      ASSERT_EQ(batch.bytes, expected(sampler, batch.first_draw)) << "batch " << i;
    }
  }

  TextFiles files_;
  std::string text_;
  TextRange range_;
};

TEST_P(Loader, GivesTheSamplersWindows) {
  const Sampler draws = sampler();
  BatchLoader loader = start(draws, 0);
  expect_batches(loader, draws, 0, kBatches);
}

TEST_P(Loader, ResumesAtAnyDraw) {
  const Sampler draws = sampler();
  for (std::uint64_t first = 0; first < 70; ++first) {
    BatchLoader loader = start(draws, first);
    expect_batches(loader, draws, first, 5);
  }
}

TEST_P(Loader, AStageEqualsResumptionWithItsSampler) {
  BatchLoader in_one_run = start(sampler(20), 0);
  expect_batches(in_one_run, sampler(20), 0, 9);
  const std::uint64_t draws = 9 * kRows;
  in_one_run.reset(maker(sampler(61, draws)), draws);
  BatchLoader resumed = start(sampler(61, draws), draws);
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    const Batch a = in_one_run.next(), b = resumed.next();
    ASSERT_EQ(a.first_draw, b.first_draw);
    ASSERT_EQ(a.bytes, b.bytes);
  }
}

TEST_P(Loader, ResetsAtAnyTime) {
  BatchLoader loader = start(sampler(), 0);
  for (std::uint64_t round = 0; round < 60; ++round) {
    const Sampler draws = sampler(1 + static_cast<std::int64_t>(round), round);
    loader.reset(maker(draws), round + 2);
    expect_batches(loader, draws, round + 2, round % 7);
  }
}

TEST_P(Loader, IsDestroyedWhileThreadsWorkOrWait) {
  for (int round = 0; round < 50; ++round) {
    BatchLoader loader = start(sampler(), 0);
    if (round % 3 == 1) (void)loader.next();
    // By then the queue is usually full, and the workers wait for space.
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (round % 3 == 2) loader = start(sampler(), 5);
  }
}

TEST_P(Loader, AMovedLoaderGoesOn) {
  BatchLoader first = start(sampler(), 0);
  expect_batches(first, sampler(), 0, 2);
  BatchLoader second = std::move(first);
  expect_batches(second, sampler(), 2 * kRows, 3);
}

// Batches have 1 to 5 positions, depending on their first one. They are the same for any number of workers.
TEST_P(Loader, BatchesMayDifferInSize) {
  const auto rows_at = [](std::uint64_t position) { return 1 + static_cast<std::int64_t>(position * 7 % 5); };
  const auto make = [](std::uint64_t first, std::int64_t rows) {
    return Batch{first, Bytes(static_cast<std::size_t>(rows))};
  };
  for (const std::uint64_t begin : {0U, 3U, 1000U}) {
    BatchLoader loader = BatchLoader::start({rows_at, make}, begin, GetParam()).value();
    std::uint64_t position = begin;
    for (std::uint64_t i = 0; i < kBatches; ++i) {
      ASSERT_EQ(loader.position(), position);
      const Batch batch = loader.next();
      ASSERT_EQ(batch.first_draw, position) << "batch " << i;
      ASSERT_EQ(static_cast<std::int64_t>(batch.bytes.size()), rows_at(position));
      position += batch.bytes.size();
    }
    loader.reset({three, make}, 17);
    EXPECT_EQ(loader.position(), 17U);
    EXPECT_EQ(loader.next().first_draw, 17U);
    EXPECT_EQ(loader.position(), 20U);
  }
}

// If a batch's size cannot be computed, next() throws that error, repeatedly.
TEST_P(Loader, ThrowsWhatItsRowsThrew) {
  const auto rows_at = [](std::uint64_t position) -> std::int64_t {
    if (position >= 4) throw std::runtime_error("no plan");
    return 2;
  };
  const auto make = [](std::uint64_t first, std::int64_t /*rows*/) { return Batch{first, {}}; };
  BatchLoader loader = BatchLoader::start({rows_at, make}, 0, GetParam()).value();
  EXPECT_EQ(loader.next().first_draw, 0U);
  EXPECT_EQ(loader.next().first_draw, 2U);
  EXPECT_THROW((void)loader.next(), std::runtime_error);
  EXPECT_THROW((void)loader.next(), std::runtime_error);
  EXPECT_EQ(loader.position(), 4U);
}

INSTANTIATE_TEST_SUITE_P(Workers, Loader, ::testing::Values(0, 1, 2, 7));

// An error in a worker is thrown to the caller, at the batch where it occurred.
TEST_P(Loader, ThrowsWhatABatchThrew) {
  const auto make = [](std::uint64_t first_draw, std::int64_t /*rows*/) -> Batch {
    if (first_draw == 2 * kRows) throw std::runtime_error("clip 6 cannot be read");
    return {first_draw, {}};
  };
  BatchLoader loader = BatchLoader::start({three, make}, 0, GetParam()).value();
  EXPECT_EQ(loader.next().first_draw, 0U);
  EXPECT_EQ(loader.next().first_draw, 0U + kRows);
  EXPECT_THROW(
      {
        try {
          (void)loader.next();
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "clip 6 cannot be read");
          throw;
        }
      },
      std::runtime_error);
  EXPECT_EQ(loader.next().first_draw, 3U * kRows);
}

std::set<pid_t> threads_of_this_process() {
  std::set<pid_t> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    out.insert(static_cast<pid_t>(std::stol(entry.path().filename().string())));
  return out;
}
cpu_set_t mask_of(pid_t thread) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(thread, sizeof mask, &mask);
  return mask;
}

TEST_P(Loader, WorkersMayRunWhereTheProcessMay) {
  const cpu_set_t all = mask_of(getpid());
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one CPU: nothing to tell apart";
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (std::size_t cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const std::set<pid_t> before = threads_of_this_process();
    const BatchLoader loader = start(sampler(), 0);
    std::vector<pid_t> workers;
    for (const pid_t thread : threads_of_this_process())
      if (!before.contains(thread)) workers.push_back(thread);
    ASSERT_EQ(workers.size(), static_cast<std::size_t>(GetParam()));
    const auto free = [&](pid_t thread) {
      const cpu_set_t mask = mask_of(thread);
      return CPU_EQUAL(&mask, &all) != 0;
    };
    // A worker sets its affinity first, but may not have done so yet.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!std::all_of(workers.begin(), workers.end(), free) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_TRUE(std::all_of(workers.begin(), workers.end(), free));
  }).join();
}

// Batches have 1, 2, 3, 1, … rows. Each is represented by its first position.
TEST(RankShare, RanksHaveTheBatchesOfOneProcess) {
  const auto rows_at = [](std::uint64_t position) { return static_cast<std::int64_t>(position % 3 + 1); };
  using Firsts = Prefetch<std::uint64_t>;
  const Firsts::Source one = {rows_at, [&](std::uint64_t first, std::int64_t rows) {
                                EXPECT_EQ(rows, rows_at(first));
                                return first;
                              }};
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int workers : {0, 2}) {
      Firsts whole = Firsts::start(one, 4, 0).value();
      std::vector<Firsts> shared;
      for (int rank = 0; rank < ranks; ++rank)
        shared.push_back(Firsts::start(shared_by_rank(one, rank, ranks), 4, workers).value());
      for (int i = 0; i < 10; ++i) {
        for (Firsts& rank : shared) EXPECT_EQ(rank.next(), whole.next()) << ranks << " ranks, item " << i;
        for (const Firsts& rank : shared) EXPECT_EQ(rank.position(), whole.position());
      }
    }
  }
}

}  // namespace
}  // namespace octavo_train
