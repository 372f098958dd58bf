// Tests Octavo's launcher: the rank and its peers that each process gets, and the processes and messages
// after a rank fails.
// SPDX-License-Identifier: MIT
#include "train/distributed/launcher.h"
#include "tests/ranks/ranks.h"
#include "train/distributed/rank_failure.h"
#include "train/distributed/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

namespace octavo_train::ranks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Starts the launcher, as a process that is not a rank, with ranks that run `program`.
ProcessOptions launching(const std::string& program, int ranks, const std::string& argument = "") {
  return {.program = "launch",
          .arguments = {program, std::to_string(ranks), argument},
          .ranks = 1,
          .placed = false,
          .environment = {{"OMP_NUM_THREADS", ""}},
          .limit = std::chrono::seconds(40)};
}

volatile std::sig_atomic_t g_signal = 0;

// Connects to the store, sends many requests and closes the connection without reading an answer.
void ask_and_leave(int port) {
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  const std::uint32_t magic = 0x3C85F7CE;  // c10d's magic number, which follows the request VALIDATE
  std::string bytes(1, '\0');
  bytes.append(reinterpret_cast<const char*>(&magic), sizeof magic);
  bytes.append(50, '\7');  // GETNUMKEYS
  EXPECT_EQ(send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  close(client);
}

}  // namespace

RANKS_PROGRAM(launch) {
  octavo_train::LaunchOptions plan;
  plan.ranks = std::stoi(arguments.at(1));
  plan.command = {"ranks_test", "--program=" + arguments.at(0), arguments.at(2)};
  plan.ask_after = std::chrono::milliseconds(1000);
  plan.kill_after = std::chrono::milliseconds(1500);
  const octavo_train::Launched done = octavo_train::launch(plan).value();
  std::cout << "launcher: " << done.message << std::endl;
  return done.code;
}

RANKS_PROGRAM(says_its_place) {
  const std::unique_ptr<ProcessGroup> process_group = join_here();
  const std::string mine = std::to_string(process_group->rank_info().local_rank) + " of " +
                           std::to_string(process_group->rank_info().local_ranks) + " with " +
                           getenv("OMP_NUM_THREADS");
  for (const std::string& each : process_group->gather(mine))
    if (process_group->leads()) std::cout << each << std::endl;
  return 0;
}

TEST(Launcher, RanksFindEachOther) {
  const Ended ended = Processes(launching("says_its_place", 3)).wait().at(0);
  EXPECT_EQ(ended.code, 0) << ended.output;
  // The ranks share the processors that this process may use.
  cpu_set_t usable;
  ASSERT_EQ(sched_getaffinity(0, sizeof usable, &usable), 0);
  const std::string threads = std::to_string(std::max(CPU_COUNT(&usable) / 3, 1));
  std::string all;
  for (const char* rank : {"0", "1", "2"}) all += std::string(rank) + " of 3 with " + threads + "\n";
  EXPECT_THAT(ended.output, AllOf(HasSubstr(all), HasSubstr("launcher: \n")));
}

// Rank 1 ends as the argument says; the other ranks would run for one more minute.
RANKS_PROGRAM(one_fails) {
  const RankInfo rank_info = place_here();
  if (rank_info.rank == 1 && arguments.at(0) == "exit") return 3;
  if (rank_info.rank == 1) kill(getpid(), SIGKILL);
  signal(SIGTERM, SIG_IGN);
  auto store = octavo_train::open_store(rank_info, kPatience).value();
  std::vector<std::uint8_t> said;
  for (int i = 0; i < 6000 && said.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    said = store->get(octavo_train::kLauncherKey);
  }
  std::cout << octavo_train::from_store(std::string(said.begin(), said.end())).text << std::endl;
  return 0;
}

TEST(Launcher, TheFirstFailureDecidesAndTheRestIsKilled) {
  const Ended ended = Processes(launching("one_fails", 2, "exit")).wait().at(0);
  EXPECT_FALSE(ended.late);
  EXPECT_EQ(ended.code, 3) << ended.output;
  EXPECT_THAT(
      ended.output,
      HasSubstr("launcher: rank 1 ended with exit code 3; rank 0 did not end by itself and was killed"));
}

TEST(Launcher, TheOthersLearnHowARankWasEnded) {
  const Ended ended = Processes(launching("one_fails", 2, "kill")).wait().at(0);
  EXPECT_EQ(ended.code, 128 + SIGKILL) << ended.output;
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("rank 1 was ended by signal 9 (Killed); the system does that if its "
                              "memory is full\n"),
                    HasSubstr("launcher: \n")));
}

// Each rank prints the signal that it got.
RANKS_PROGRAM(waits_for_a_signal) {
  const RankInfo rank_info = place_here();
  struct sigaction action {};
  action.sa_handler = [](int number) { g_signal = number; };
  sigaction(SIGTERM, &action, nullptr);
  const std::unique_ptr<ProcessGroup> process_group = join_here();
  if (rank_info.leads()) std::ofstream(arguments.at(0)) << getpid();
  double stop[] = {0};
  for (int i = 0; i < 2000 && stop[0] == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    stop[0] = g_signal;
    process_group->sum(stop);
  }
  for (const std::string& each : process_group->gather(std::to_string(g_signal)))
    if (rank_info.leads()) std::cout << "got " << each << std::endl;
  return 0;
}

TEST(Launcher, ASignalGoesToRankZeroAlone) {
  const std::string file = scratch() + "/waits";
  Processes processes(launching("waits_for_a_signal", 2, file));
  ASSERT_TRUE(wait_for_file(file));
  processes.signal(0, SIGTERM);
  const Ended ended = processes.wait().at(0);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("got 15\ngot 0\n"));
}

TEST(Launcher, RanksDieWithIt) {
  const std::string file = scratch() + "/dies";
  Processes processes(launching("waits_for_a_signal", 2, file));
  ASSERT_TRUE(wait_for_file(file));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  pid_t rank = 0;
  std::ifstream(file) >> rank;
  ASSERT_GT(rank, 0);
  EXPECT_EQ(kill(rank, 0), 0);
  processes.signal(0, SIGKILL);
  processes.wait();
  for (int i = 0; i < 500 && kill(rank, 0) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_NE(kill(rank, 0), 0) << "rank 0 is alive";
}

RANKS_PROGRAM(is_asked_by_a_stranger) {
  const std::unique_ptr<ProcessGroup> process_group = join_here();
  if (process_group->leads())
    for (int i = 0; i < 200; ++i) ask_and_leave(process_group->rank_info().port);
  std::cout << process_group->gather("fine").at(0) << std::endl;
  return 0;
}

TEST(Launcher, AClosedConnectionDoesNotEndIt) {
  const Ended ended = Processes(launching("is_asked_by_a_stranger", 2)).wait().at(0);
  EXPECT_EQ(ended.code, 0) << "signal " << ended.signal;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("fine\n"), HasSubstr("launcher: \n")));
}

TEST(Store, APortInUseIsAnError) {
  const octavo_train::ServedStore first = octavo_train::serve_store("127.0.0.1", 0).value();
  const auto second = octavo_train::serve_store("127.0.0.1", first.port);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), AllOf(HasSubstr("127.0.0.1, port " + std::to_string(first.port)),
                                               HasSubstr("in use"), HasSubstr("MASTER_PORT")));
}

}  // namespace octavo_train::ranks
