// Helpers for tests of several ranks. A case is a body that every rank of a group runs with the group's
// ProcessGroup:
//
//   RANKS_TEST(sums_are_equal, 2, 3) { ... EXPECT_EQ(process_group.ranks(), ...); }
//
// The group of each number of ranks is started once, as processes of this binary, and runs all of its cases
// in order. In gtest a case is Ranks2.sums_are_equal and Ranks3.sums_are_equal, and --gtest_filter selects
// among them. A failure message contains the rank. All ranks must make the same calls in a case: if one
// leaves early, for example by ASSERT_, the others keep waiting for it, and the rest of that group's cases
// fail.
//
// A test that needs separate processes (a rank that is killed, a complete command) is a program, which a
// usual TEST starts with Processes:
//
//   RANKS_PROGRAM(dies) { const RankInfo place = place_here(); ...; return 0; }
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/process_group.h"

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace octavo_train::ranks {

using octavo_train::ProcessGroup;
using octavo_train::RankInfo;

// The longest time that a rank waits for the others in a test. A hang takes this long.
inline constexpr std::chrono::milliseconds kPatience{20'000};

struct Case {
  std::string name;
  std::vector<int> counts;
  void (*body)(ProcessGroup& process_group);
};
bool add_case(Case one);

using Arguments = std::vector<std::string>;
bool add_program(const std::string& name, int (*body)(const Arguments& arguments));

// Returns this process's rank and its peers. REQUIRES: it is a rank.
RankInfo place_here();
// Joins the CPU process group as this process's rank.
std::unique_ptr<ProcessGroup> join_here(std::chrono::milliseconds timeout = kPatience);
// Waits until the file exists. Returns false if it does not appear within 30 s.
bool wait_for_file(const std::string& file);
// Returns a folder that all ranks of this binary's run share. It is removed at the end.
std::string scratch();

struct ProcessOptions {
  std::string program;
  Arguments arguments{};
  int ranks = 2;
  bool placed = true;                                // false: usual processes, which get no rank
  std::map<std::string, std::string> environment{};  // extra ones; an empty value removes one
  std::chrono::seconds limit{60};                    // then all processes are killed
};

struct Ended {
  int code = 0;    // the exit code; -1: a signal
  int signal = 0;  // the signal that ended the process
  bool late = false;
  std::string output;  // stdout and stderr
};

// Processes of this binary that run a program. Each has its rank in its environment.
class Processes {
 public:
  explicit Processes(const ProcessOptions& plan);
  ~Processes();  // kills the processes that still run
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  [[nodiscard]] pid_t id(int rank) const { return ids_[static_cast<std::size_t>(rank)]; }
  void signal(int rank, int number) const;
  // Waits until all processes have ended, or until the limit.
  std::vector<Ended> wait();

 private:
  struct Store;
  std::unique_ptr<Store> store_;
  std::vector<pid_t> ids_;
  std::vector<std::string> files_;  // the processes' output
  std::chrono::steady_clock::time_point end_;
  bool waited_ = false;
};

}  // namespace octavo_train::ranks

#define RANKS_TEST(name, ...)                                                   \
  static void ranks_case_##name(octavo_train::ProcessGroup& process_group);     \
  static const bool ranks_added_##name =                                        \
      octavo_train::ranks::add_case({#name, {__VA_ARGS__}, ranks_case_##name}); \
  static void ranks_case_##name([[maybe_unused]] octavo_train::ProcessGroup& process_group)

#define RANKS_PROGRAM(name)                                                         \
  static int ranks_program_##name(const octavo_train::ranks::Arguments& arguments); \
  static const bool ranks_program_added_##name =                                    \
      octavo_train::ranks::add_program(#name, ranks_program_##name);                \
  static int ranks_program_##name([[maybe_unused]] const octavo_train::ranks::Arguments& arguments)
