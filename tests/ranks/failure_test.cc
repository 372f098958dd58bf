// A rank that fails, dies or hangs: what the others say, and how soon.
// SPDX-License-Identifier: MIT
#include "ranks/ranks.h"
#include "train/world/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <thread>

namespace octavo::ranks {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// A world that is quick to see what is wrong.
std::unique_ptr<World> join_nervously(milliseconds timeout, milliseconds silence) {
  return World::join(place_here(), torch::kCPU,
                     {.timeout = timeout,
                      .beat = milliseconds(100),
                      .silence = silence,
                      .patience = milliseconds(500)})
      .value();
}

std::vector<Ended> ends_of(const std::string& program, int ranks) {
  return Processes({.program = program, .ranks = ranks, .limit = std::chrono::seconds(30)}).wait();
}

void sleep_long() { std::this_thread::sleep_for(std::chrono::seconds(60)); }

}  // namespace

RANKS_PROGRAM(rank_1_fails) {
  const std::unique_ptr<World> world = join_nervously(kPatience, kPatience);
  world->remember("; the newest checkpoint is step-7");
  if (world->rank() == 1) {
    world->fail("out of memory");
    return 3;
  }
  torch::Tensor sum = torch::ones({1000});
  world->all_reduce(sum).wait();
  return 0;
}

TEST(Failure, OfARankReachesAllOthers) {
  const std::vector<Ended> ends = ends_of("rank_1_fails", 3);
  EXPECT_EQ(ends[1].code, 3);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].code, 1);
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].output,
              "rank 1: out of memory; the newest checkpoint is step-7\n");
  }
}

RANKS_PROGRAM(rank_1_dies) {
  const std::unique_ptr<World> world = join_nervously(kPatience, milliseconds(1500));
  world->doing("reading batches");
  std::this_thread::sleep_for(milliseconds(300));  // a sign of life has said so
  if (world->rank() == 1) kill(getpid(), SIGKILL);
  world->gather("");
  return 0;
}

TEST(Failure, ADeadRankIsMissed) {
  const std::vector<Ended> ends = ends_of("rank_1_dies", 3);
  EXPECT_EQ(ends[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ends[static_cast<std::size_t>(rank)].output,
                AllOf(HasSubstr("rank 1 is gone: it has shown no sign of life for"),
                      HasSubstr("and was reading batches")));
  }
}

// Rank 0 is in work of its own and does not come back to hear of it.
RANKS_PROGRAM(rank_1_hangs) {
  const std::unique_ptr<World> world = join_nervously(milliseconds(1500), kPatience);
  world->doing("evaluating");
  world->gather("");
  if (world->rank() == 1) sleep_long();
  world->all_reduce(torch::ones({4}));
  if (world->rank() == 0) sleep_long();
  world->gather("");
  return 0;
}

TEST(Failure, ARankThatHangsIsNamed) {
  const std::vector<Ended> ends = ends_of("rank_1_hangs", 3);
  EXPECT_EQ(ends[1].code, 1);
  EXPECT_EQ(ends[1].output, "") << "rank 0 says it";
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].code, 1);
    EXPECT_THAT(ends[static_cast<std::size_t>(rank)].output,
                AllOf(HasSubstr("rank 1 hangs: the others have waited for it for 1 s"),
                      HasSubstr("it has been evaluating for")));
  }
}

RANKS_PROGRAM(rank_1_never_comes) {
  if (place_here().rank == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    return 7;
  }
  const auto joined = World::join(place_here(), torch::kCPU, {.start = milliseconds(4000)});
  std::cout << joined.status().message() << std::endl;
  return 1;
}

TEST(Failure, RanksThatDoNotComeAreNamed) {
  const std::vector<Ended> ends = ends_of("rank_1_never_comes", 3);
  EXPECT_EQ(ends[1].code, 7);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ends[static_cast<std::size_t>(rank)].output,
                HasSubstr("rank 1 of 3 did not come within 4 s"));
  }
}

RANKS_PROGRAM(devices_differ) {
  const bool other = place_here().rank == 2;
  const auto joined =
      World::join(place_here(), other ? torch::Device(torch::kMeta) : torch::Device(torch::kCPU), {});
  std::cout << joined.status().message() << std::endl;
  return joined.ok() ? 0 : 1;
}

TEST(Failure, RanksOnOtherDevicesAreNamed) {
  for (const Ended& each : ends_of("devices_differ", 3)) {
    EXPECT_EQ(each.code, 1);
    EXPECT_THAT(each.output, HasSubstr("rank 0 computes on cpu, rank 2 on meta"));
  }
}

}  // namespace octavo::ranks
