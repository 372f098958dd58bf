// Tests a rank that fails, dies or hangs: the messages of the other ranks, and how soon they end.
// SPDX-License-Identifier: MIT
#include "tests/ranks/ranks.h"
#include "train/console/signals.h"
#include "train/distributed/launcher.h"
#include "train/distributed/rank_failure.h"
#include "train/distributed/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <new>
#include <thread>

namespace octavo_train::ranks {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// Joins a process group with short limits, so that failures are detected quickly.
std::unique_ptr<ProcessGroup> join_nervously(milliseconds timeout, milliseconds silence) {
  return ProcessGroup::join(place_here(), torch::kCPU,
                            {.timeout = timeout,
                             .beat = milliseconds(100),
                             .silence = silence,
                             .patience = milliseconds(500)})
      .value();
}

std::vector<Ended> ends_of(const std::string& program, int ranks) {
  return Processes({.program = program, .ranks = ranks, .limit = std::chrono::seconds(30)}).wait();
}

// A listening socket whose connections the kernel accepts, but no program reads.
class SilentListener {
 public:
  SilentListener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    if (bind(socket_, address, length) != 0 || listen(socket_, 8) != 0 ||
        getsockname(socket_, address, &length) != 0)
      throw std::runtime_error("no port to listen at");
    port_ = ntohs(at.sin_port);
  }
  ~SilentListener() { close(socket_); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;
  [[nodiscard]] int port() const { return port_; }

 private:
  int socket_, port_ = 0;
};

void sleep_long() { std::this_thread::sleep_for(std::chrono::seconds(60)); }

}  // namespace

RANKS_PROGRAM(rank_1_fails) {
  const std::unique_ptr<ProcessGroup> process_group = join_nervously(kPatience, kPatience);
  process_group->set_error_suffix("; the newest checkpoint is step-7");
  if (process_group->rank() == 1) {
    process_group->fail("out of memory");
    return 3;
  }
  torch::Tensor sum = torch::ones({1000});
  process_group->all_reduce(sum).wait();
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
  const std::unique_ptr<ProcessGroup> process_group = join_nervously(kPatience, milliseconds(1500));
  process_group->set_activity("reading batches");
  std::this_thread::sleep_for(milliseconds(300));  // long enough for a heartbeat that reports this work
  if (process_group->rank() == 1) kill(getpid(), SIGKILL);
  process_group->gather("");
  return 0;
}

TEST(Failure, ADeadRankIsMissed) {
  const std::vector<Ended> ends = ends_of("rank_1_dies", 3);
  EXPECT_EQ(ends[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ends[static_cast<std::size_t>(rank)].output,
                AllOf(HasSubstr("rank 1 is gone: it has sent no heartbeat for"),
                      HasSubstr("and was reading batches")));
  }
}

// Rank 0 sleeps outside of collective calls, so it cannot learn of the failure from one.
RANKS_PROGRAM(rank_1_hangs) {
  const std::unique_ptr<ProcessGroup> process_group = join_nervously(milliseconds(1500), kPatience);
  process_group->set_activity("evaluating");
  process_group->gather("");
  if (process_group->rank() == 1) sleep_long();
  process_group->all_reduce(torch::ones({4}));
  if (process_group->rank() == 0) sleep_long();
  process_group->gather("");
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
  const auto joined = ProcessGroup::join(place_here(), torch::kCPU, {.start = milliseconds(4000)});
  std::cout << joined.status().message() << std::endl;
  return 1;
}

TEST(Failure, RanksThatDoNotComeAreNamed) {
  const std::vector<Ended> ends = ends_of("rank_1_never_comes", 3);
  EXPECT_EQ(ends[1].code, 7);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ends[static_cast<std::size_t>(rank)].output,
                HasSubstr("rank 1 of 3 did not join within 4 s"));
  }
}

// Connects to a program at the store's port that accepts connections and never answers.
RANKS_PROGRAM(meets_a_silent_program) {
  const auto joined = ProcessGroup::join(place_here(), torch::kCPU, {.start = milliseconds(500)});
  std::cout << joined.status().message() << std::endl;
  return 1;
}

TEST(Failure, AProgramThatIsNotTheStoreIsNamed) {
  const SilentListener listener;
  const Ended ended = Processes({.program = "meets_a_silent_program",
                                 .ranks = 1,
                                 .environment = {{"OCTAVO_LAUNCHER", ""},
                                                 {"RANK", "1"},
                                                 {"LOCAL_RANK", "1"},
                                                 {"WORLD_SIZE", "2"},
                                                 {"LOCAL_WORLD_SIZE", "2"},
                                                 {"MASTER_PORT", std::to_string(listener.port())}},
                                 .limit = std::chrono::seconds(30)})
                          .wait()
                          .at(0);
  EXPECT_FALSE(ended.late);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("port " + std::to_string(listener.port()) + " has not answered"),
                                  HasSubstr("it does not serve this run")));
}

// Waits for an event that never comes, for much longer than the test takes.
RANKS_PROGRAM(is_told_to_stop) {
  const octavo_train::StopSignals signals("");
  std::ofstream(arguments.at(0) + getenv("RANK")) << "waiting";
  const auto joined = ProcessGroup::join(
      place_here(), torch::kCPU,
      {.start = std::chrono::hours(1), .stop = [] { return octavo_train::StopSignals::received() != 0; }});
  std::cout << joined.status().message() << std::endl;
  return 0;
}

TEST(Failure, ASignalIsObeyedBeforeTheRanksHaveMet) {
  const SilentListener listener;
  const std::string silent = std::to_string(listener.port()), file = scratch() + "/stop";
  for (const char* rank : {"1", "0"}) {  // 1: connects to a silent program; 0: waits for another rank
    std::map<std::string, std::string> variables = {
        {"RANK", rank}, {"LOCAL_RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}};
    if (rank == std::string("1")) variables.insert({{"OCTAVO_LAUNCHER", ""}, {"MASTER_PORT", silent}});
    Processes processes({.program = "is_told_to_stop",
                         .arguments = {file},
                         .ranks = 1,
                         .environment = variables,
                         .limit = std::chrono::seconds(30)});
    ASSERT_TRUE(wait_for_file(file + rank));
    processes.signal(0, SIGTERM);
    const Ended ended = processes.wait().at(0);
    EXPECT_FALSE(ended.late);
    EXPECT_EQ(ended.output, "stopped by a signal before all ranks were there\n");
  }
}

// Rank 0 gets a stop request while rank 1 waits for rank 2.
RANKS_PROGRAM(rank_0_is_told_to_stop) {
  if (place_here().rank == 2) return 0;
  const auto joined = ProcessGroup::join(
      place_here(), torch::kCPU,
      {.start = std::chrono::hours(1), .stop = [begin = std::chrono::steady_clock::now()] {
         return place_here().leads() && std::chrono::steady_clock::now() - begin > milliseconds(500);
       }});
  std::cout << joined.status().message() << std::endl;
  return 1;
}

TEST(Failure, ARankThatIsToldToStopSendsTheOthersHome) {
  const auto ends = ends_of("rank_0_is_told_to_stop", 3);
  EXPECT_FALSE(ends[1].late);
  EXPECT_EQ(ends[1].output, "rank 0 was stopped by a signal before all ranks were there\n");
}

RANKS_PROGRAM(has_few_descriptors) {
  const rlimit few{16, 16};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto joined = ProcessGroup::join(place_here(), torch::kCPU, {});
  std::cout << joined.status().message() << std::endl;
  std::cout << octavo_train::launch({.ranks = 2, .command = {"ranks_test"}}).status().message() << std::endl;
  return 1;
}

TEST(Failure, TooFewOpenFilesAreAnErrorAtOnce) {
  for (const Ended& each : ends_of("has_few_descriptors", 2)) {
    EXPECT_FALSE(each.late);
    const std::string line =
        "too many open files: the ranks need 20 more in each process, and the limit of a process is 16; "
        "raise "
        "it, for instance with ulimit -n 4096\n";
    EXPECT_EQ(each.output, line + line);
  }
}

// Rank 0, which serves the store, stops without closing a connection, as if its machine lost power. Its child
// process kills it when the other ranks have noticed.
RANKS_PROGRAM(rank_0_falls_silent) {
  const std::unique_ptr<ProcessGroup> process_group = join_nervously(kPatience, milliseconds(1500));
  const std::string done = scratch() + "/silent-";
  process_group->gather("");
  if (process_group->leads()) {
    const pid_t parent = getpid();
    if (fork() == 0) {
      kill(parent, SIGSTOP);
      wait_for_file(done + "1");
      wait_for_file(done + "2");
      kill(parent, SIGKILL);
      _exit(0);
    }
    sleep_long();
  }
  int code = 3;
  if (process_group->rank() == 1) {
    std::this_thread::sleep_for(milliseconds(200));
    process_group->fail("out of memory");  // the store no longer accepts it
  } else {
    try {
      process_group->gather("");
    } catch (const octavo_train::ProcessGroupError& error) {
      std::cout << error.what() << std::endl;
      code = error.failure().rank == 0 ? 4 : 5;
    }
  }
  std::ofstream(done + std::to_string(process_group->rank())) << "done";
  return code;
}

TEST(Failure, AStoreThatFallsSilentIsNoticed) {
  const int port = [] { return octavo_train::serve_store("127.0.0.1", 0).value().port; }();
  const auto ends =
      Processes({.program = "rank_0_falls_silent",
                 .ranks = 3,
                 .environment = {{"OCTAVO_LAUNCHER", ""}, {"MASTER_PORT", std::to_string(port)}},
                 .limit = std::chrono::seconds(40)})
          .wait();
  EXPECT_EQ(ends[0].signal, SIGKILL);
  EXPECT_FALSE(ends[1].late || ends[2].late);
  EXPECT_EQ(ends[1].code, 3);
  EXPECT_EQ(ends[2].code, 4);
  // LibTorch's own error comes later, when the connection finally breaks.
  EXPECT_THAT(ends[2].output,
              testing::StartsWith("rank 0, which serves the store of the ranks, has not answered for 1 s\n"));
}

TEST(Failure, IsTheSameAfterTheStore) {
  using FoundBy = octavo_train::RankFailure::FoundBy;
  for (const octavo_train::RankFailure& each :
       {octavo_train::RankFailure{3, FoundBy::launcher, "rank 3 was ended"},
        octavo_train::RankFailure{.text = "12 a b"}, octavo_train::RankFailure{0, FoundBy::itself, ""}}) {
    const octavo_train::RankFailure back = octavo_train::from_store(octavo_train::to_store(each));
    EXPECT_EQ(back.rank, each.rank);
    EXPECT_EQ(back.found_by, each.found_by);
    EXPECT_EQ(back.text, each.text);
  }
  for (const char* other : {"", "rank 1: no", "1 9 x", "1", "1 2", "-7 0 x", "99999999999 1 x"}) {
    EXPECT_EQ(octavo_train::from_store(other).rank, octavo_train::RankFailure::kNoRank) << other;
    EXPECT_EQ(octavo_train::from_store(other).text, other);
  }
}

// The failed rank is stored as a separate value, so a reason that begins with another rank's number is not
// misread.
RANKS_PROGRAM(rank_1_fails_with_a_rank_in_its_reason) {
  const std::unique_ptr<ProcessGroup> process_group = join_nervously(kPatience, kPatience);
  if (process_group->rank() == 1) {
    process_group->fail("rank 0 of the matrix is deficient");
    return 3;
  }
  try {
    process_group->gather("");
  } catch (const octavo_train::ProcessGroupError& error) {
    std::cout << error.failure().rank << ' ' << error.what() << std::endl;
  }
  return 1;
}

TEST(Failure, KnowsItsRankWhateverTheReasonSays) {
  EXPECT_EQ(ends_of("rank_1_fails_with_a_rank_in_its_reason", 2)[0].output,
            "1 rank 1: rank 0 of the matrix is deficient\n");
}

RANKS_PROGRAM(throws_in_a_thread) {
  octavo_train::print_before_terminate(place_here().rank);
  std::thread([] { throw std::bad_alloc(); }).join();
  return 0;
}

TEST(Failure, ATerminatedRankPrintsWhy) {
  const Ended ended = ends_of("throws_in_a_thread", 1).at(0);
  EXPECT_EQ(ended.signal, SIGABRT);
  EXPECT_EQ(ended.output, "octavo: rank 0: out of memory on the host\n");
}

RANKS_PROGRAM(devices_differ) {
  const bool other = place_here().rank == 2;
  const auto joined =
      ProcessGroup::join(place_here(), other ? torch::Device(torch::kMeta) : torch::Device(torch::kCPU), {});
  std::cout << joined.status().message() << std::endl;
  return joined.ok() ? 0 : 1;
}

TEST(Failure, RanksOnOtherDevicesAreNamed) {
  for (const Ended& each : ends_of("devices_differ", 3)) {
    EXPECT_EQ(each.code, 1);
    EXPECT_THAT(each.output, HasSubstr("rank 0 computes on cpu, rank 2 on meta"));
  }
}

}  // namespace octavo_train::ranks
