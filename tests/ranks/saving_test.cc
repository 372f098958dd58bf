// Tests that a rank that writes a checkpoint is not ended, neither because another rank fails nor because
// writing takes long.
//
// Rank 0's disk is slow: a save takes longer than every limit of the monitor and of the launcher.
// SPDX-License-Identifier: MIT
#include "tests/ranks/exact_task.h"
#include "tests/ranks/whole_run.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/console/signals.h"
#include "train/distributed/launcher.h"
#include "train/distributed/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <iostream>
#include <map>
#include <thread>

namespace octavo_train::ranks {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr milliseconds kFsync{800};      // per file of a checkpoint, which has five, and for its folder
constexpr milliseconds kTimeout{4'000};  // for a rank that the others wait for, also at the start
std::atomic<bool> g_slow_disk{false};

bool is_slow(int descriptor) {
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  char path[4096] = {};
  if (!g_slow_disk || readlink(link.c_str(), path, sizeof path - 1) < 0) return false;
  const std::string text = path;
  return text.find("/.checkpoint-") != std::string::npos || text.find("report.html") != std::string::npos;
}

}  // namespace
}  // namespace octavo_train::ranks

// Replaces libc's fsync in this binary.
extern "C" int fsync(int descriptor) {
  if (octavo_train::ranks::is_slow(descriptor)) std::this_thread::sleep_for(octavo_train::ranks::kFsync);
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

namespace octavo_train::ranks {
namespace {

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::unique_ptr<ProcessGroup> join_with_slow_disk(milliseconds timeout = kTimeout,
                                                  milliseconds local = 3 * kPatience) {
  g_slow_disk = place_here().leads();
  return ProcessGroup::join(place_here(), torch::kCPU,
                            {.timeout = timeout,
                             .start = kPatience,
                             .beat = milliseconds(100),
                             .silence = milliseconds(3000),
                             .patience = milliseconds(300),
                             .local = local})
      .value();
}

// If `fails` is true, reading a batch at position `from` or later is an error.
class FailingTask : public ExactTask {
 public:
  FailingTask(bool fails, std::uint64_t from) : ExactTask(2), fails_(fails), from_(from) {}
  [[nodiscard]] octavo_train::Batch read(const octavo_train::Order& order, std::uint64_t first,
                                         std::int64_t rows) const override {
    if (fails_ && first >= from_) throw std::runtime_error("rank 7 of the data cannot be read");
    return ExactTask::read(order, first, rows);
  }

 private:
  const bool fails_;
  const std::uint64_t from_;
};

Words exact_words(int steps) {
  return {"optimizer=adamw", "per_device_train_batch_size=2", "save_steps=4",
          "max_steps=" + std::to_string(steps)};
}

enum class By { launcher, torchrun };

std::string name_of(By by) { return by == By::launcher ? "launcher" : "torchrun"; }

// Starts a program with Octavo's launcher, or as torchrun would, where rank 0 serves the store.
std::unique_ptr<Processes> start(By by, const std::string& program, const std::string& argument) {
  if (by == By::launcher) {
    return std::make_unique<Processes>(ProcessOptions{
        .program = "launch", .arguments = {program, "2", argument}, .ranks = 1, .placed = false});
  }
  const int port = [] { return octavo_train::serve_store("127.0.0.1", 0).value().port; }();
  return std::make_unique<Processes>(
      ProcessOptions{.program = program,
                     .arguments = {argument},
                     .environment = {{"OCTAVO_LAUNCHER", ""}, {"MASTER_PORT", std::to_string(port)}}});
}

// Runs a program with both launchers concurrently, because most of its time is waiting. `during` may act on
// the processes.
void in_both_ways(
    const std::string& program,
    const std::function<void(By by, const std::string& run, Processes& processes)>& during,
    const std::function<void(By by, const std::string& run, const std::vector<Ended>& ends)>& afterwards) {
  const auto run = [&](By by) { return program + '-' + name_of(by); };
  std::map<By, std::unique_ptr<Processes>> all;
  for (const By by : {By::launcher, By::torchrun}) all[by] = start(by, program, run(by));
  for (const auto& [by, processes] : all) during(by, run(by), *processes);
  for (const auto& [by, processes] : all) {
    SCOPED_TRACE(name_of(by));
    const auto ends = processes->wait();
    for (const Ended& each : ends) EXPECT_FALSE(each.late);
    afterwards(by, run(by), ends);
  }
}

void nothing(By /*by*/, const std::string& /*run*/, Processes& /*processes*/) {}

std::string text_of(const std::vector<Ended>& ends) {
  std::string all;
  for (const Ended& each : ends) all += each.output;
  return all;
}

}  // namespace

// Rank 1 is killed after rank 0 has begun to write.
RANKS_PROGRAM(is_killed_while_rank_0_saves) {
  const std::unique_ptr<ProcessGroup> process_group = join_with_slow_disk();
  WholeRun run(arguments.at(0));
  if (process_group->rank() == 1) {
    std::thread([partial = run.out + "/.checkpoint-4.partial"] {
      if (wait_for_file(partial)) kill(getpid(), SIGKILL);
    }).detach();
  }
  std::cout << run.go(process_group.get(), std::make_unique<ExactTask>(2), exact_words(8)) << std::endl;
  return 1;
}

TEST(SlowSave, IsFinishedWhereAnotherRankIsKilled) {
  in_both_ways("is_killed_while_rank_0_saves", nothing,
               [](By by, const std::string& name, const std::vector<Ended>& ends) {
                 EXPECT_THAT(
                     text_of(ends),
                     AllOf(HasSubstr(by == By::launcher ? "rank 1 was ended by signal 9" : "rank 1 is gone"),
                           HasSubstr("step 4 is saved in "), Not(HasSubstr("was killed"))));
                 WholeRun run(name);
                 EXPECT_EQ(octavo_train::verify_checkpoint(run.checkpoint(4)).message(), "");
                 EXPECT_EQ(run.go(nullptr, std::make_unique<ExactTask>(2), exact_words(5)), "");
                 EXPECT_TRUE(run.has(5));
               });
}

// Rank 1 fails with its own error. Rank 0 saves the step that the run has reached.
RANKS_PROGRAM(fails_before_rank_0_saves) {
  const std::unique_ptr<ProcessGroup> process_group = join_with_slow_disk();
  WholeRun run(arguments.at(0));
  auto task = std::make_unique<FailingTask>(process_group->rank() == 1, 3 * 4);
  const std::string error = run.go(process_group.get(), std::move(task), exact_words(40));
  if (!process_group->leads()) return 3;
  std::cout << error << std::endl;
  return 1;
}

TEST(SlowSave, AfterAFailureOfAnotherRankIsFinished) {
  in_both_ways("fails_before_rank_0_saves", nothing,
               [](By /*by*/, const std::string& name, const std::vector<Ended>& ends) {
                 const std::string reason = "rank 1: rank 7 of the data cannot be read";
                 EXPECT_THAT(text_of(ends), AllOf(HasSubstr(reason + "; step 3 is saved in "),
                                                  Not(HasSubstr("was killed"))));
                 WholeRun run(name);
                 EXPECT_EQ(octavo_train::verify_checkpoint(run.checkpoint(3)).message(), "");
                 // The reason is logged before the save, and the saved step after it.
                 const auto ended = run.records("end");
                 ASSERT_EQ(ended.size(), 2U);
                 EXPECT_EQ(ended[0]["message"], reason);
                 EXPECT_THAT(ended[1]["message"].get<std::string>(), HasSubstr("; step 3 is saved in "));
                 const double saving = ended[1]["seconds"].get<double>() - ended[0]["seconds"].get<double>();
                 EXPECT_GT(saving, 4.0) << "the disk was not slow";
                 EXPECT_EQ(run.go(nullptr, std::make_unique<ExactTask>(2), exact_words(4)), "");
                 EXPECT_TRUE(run.has(4));
               });
}

// Does what the complete command does: trains, saves, and writes the report.
RANKS_PROGRAM(trains_text) {
  const std::unique_ptr<ProcessGroup> process_group = join_with_slow_disk();
  octavo_train::TinyRun run(scratch(), arguments.at(0));
  const auto config =
      octavo_train::parse(run.yaml, "run.yaml",
                          Words{"data.train=" + process_group->broadcast_text(octavo_train::text_file()),
                                "max_steps=100000", "save_steps=4", "eval_steps=null"});
  octavo_train::Recorder recorder;
  const std::shared_ptr<ProcessGroup> borrowed(process_group.get(), [](ProcessGroup*) {});
  const auto outcome = octavo_train::train(*config, recorder, borrowed);
  if (!outcome.ok()) std::cout << outcome.status().message() << std::endl;
  return outcome.ok() ? 128 + outcome->signal : 1;
}

TEST(SlowSave, IsFinishedWhereTheRunIsToldToStop) {
  in_both_ways(
      "trains_text",
      [](By by, const std::string& name, Processes& processes) {
        EXPECT_TRUE(wait_for_file(octavo_train::TinyRun(scratch(), name).out + "/.checkpoint-4.partial"));
        processes.signal(0, SIGTERM);
        if (by == By::torchrun) processes.signal(1, SIGTERM);
      },
      [](By /*by*/, const std::string& name, const std::vector<Ended>& ends) {
        for (const Ended& each : ends) EXPECT_EQ(each.code, 128 + SIGTERM) << each.output;
        const octavo_train::TinyRun run(scratch(), name);
        EXPECT_EQ(octavo_train::verify_checkpoint(run.checkpoint(4)).message(), "");
        EXPECT_TRUE(exists(run.out + "/report.html")) << "written after the other rank has ended";
      });
}

RANKS_PROGRAM(works_locally) {
  const std::unique_ptr<ProcessGroup> process_group = join_with_slow_disk(milliseconds(1000));
  if (process_group->leads()) {
    const octavo_train::LocalWork work = process_group->local_work("reading a book");
    std::this_thread::sleep_for(milliseconds(2500));
  }
  std::cout << process_group->gather("fine").at(0) << std::endl;
  return 0;
}

TEST(LocalWork, MayTakeLongerThanARankIsWaitedFor) {
  for (const Ended& each : Processes({.program = "works_locally"}).wait()) {
    EXPECT_EQ(each.code, 0);
    EXPECT_EQ(each.output, "fine\n");
  }
}

// The limit is short here; in a real run it is one hour.
RANKS_PROGRAM(works_for_ever) {
  const std::unique_ptr<ProcessGroup> process_group =
      join_with_slow_disk(milliseconds(1000), milliseconds(1000));
  if (process_group->leads()) {
    const octavo_train::LocalWork work = process_group->local_work("reading a book");
    std::this_thread::sleep_for(3 * kPatience);
  }
  process_group->gather("");
  return 0;
}

TEST(LocalWork, ThatNeverEndsIsEnded) {
  const auto ends = Processes({.program = "works_for_ever", .limit = std::chrono::seconds(30)}).wait();
  for (const Ended& each : ends) {
    EXPECT_FALSE(each.late);
    EXPECT_EQ(each.code, 1);
    EXPECT_THAT(each.output, AllOf(HasSubstr("rank 0 hangs"), HasSubstr("it has been reading a book for")));
  }
}

}  // namespace octavo_train::ranks
