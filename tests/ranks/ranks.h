// Tests of what ranks do together. A case is a body that every rank of a group runs with the group's World:
//
//   RANKS_TEST(sums_are_equal, 2, 3) { ... EXPECT_EQ(world.ranks(), ...); }
//
// Each number of ranks is started once, as processes of this binary, and runs all of its cases in their
// order. In gtest a case is Ranks2.sums_are_equal and Ranks3.sums_are_equal; --gtest_filter chooses among
// them. What a rank says about a failure comes with its rank. All ranks must make the same calls in a case: a
// rank that leaves early, by ASSERT_ say, leaves the others waiting, and the rest of that group is lost.
//
// What needs processes of its own (a rank that is killed, a whole command) is a program, which a usual TEST
// starts with Processes:
//
//   RANKS_PROGRAM(dies) { const Place place = place_here(); ...; return 0; }
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/world.h"

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace octavo::ranks {

using train::Place;
using train::World;

// How long a rank waits for the others in a test. A hang costs this much.
inline constexpr std::chrono::milliseconds kPatience{20'000};

struct Case {
  std::string name;
  std::vector<int> counts;
  void (*body)(World& world);
};
bool add_case(Case one);

using Arguments = std::vector<std::string>;
bool add_program(const std::string& name, int (*body)(const Arguments& arguments));

// This process's place; it must have one.
Place place_here();
// A world of CPUs at this place.
std::unique_ptr<World> join_here(std::chrono::milliseconds timeout = kPatience);
// Waits until there is such a file; false: there was none within half a minute.
bool wait_for_file(const std::string& file);
// A folder that all ranks of this binary's run share, removed at its end.
std::string scratch();

struct Plan {
  std::string program;
  Arguments arguments{};
  int ranks = 2;
  bool placed = true;                                // false: they are told no place, and are usual processes
  std::map<std::string, std::string> environment{};  // besides the place; an empty value removes
  std::chrono::seconds limit{60};                    // then all are killed
};

struct Ended {
  int code = 0;    // the exit code; -1: a signal
  int signal = 0;  // that ended it
  bool late = false;
  std::string output;  // of stdout and stderr
};

// Processes of this binary that run a program, each with its place in the environment.
class Processes {
 public:
  explicit Processes(const Plan& plan);
  ~Processes();  // kills what still runs
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  [[nodiscard]] pid_t id(int rank) const { return ids_[static_cast<std::size_t>(rank)]; }
  void signal(int rank, int number) const;
  // Until all have ended, or the limit.
  std::vector<Ended> wait();

 private:
  struct Store;
  std::unique_ptr<Store> store_;
  std::vector<pid_t> ids_;
  std::vector<std::string> files_;  // of their output
  std::chrono::steady_clock::time_point end_;
  bool waited_ = false;
};

}  // namespace octavo::ranks

#define RANKS_TEST(name, ...)                                                                                \
  static void ranks_case_##name(octavo::train::World& world);                                                \
  static const bool ranks_added_##name = octavo::ranks::add_case({#name, {__VA_ARGS__}, ranks_case_##name}); \
  static void ranks_case_##name([[maybe_unused]] octavo::train::World& world)

#define RANKS_PROGRAM(name)                                                                               \
  static int ranks_program_##name(const octavo::ranks::Arguments& arguments);                             \
  static const bool ranks_program_added_##name = octavo::ranks::add_program(#name, ranks_program_##name); \
  static int ranks_program_##name([[maybe_unused]] const octavo::ranks::Arguments& arguments)
