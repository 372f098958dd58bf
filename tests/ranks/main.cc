// The test harness: registers a gtest test for each case and number of ranks, starts the groups, and is the
// main function of the ranks.
// SPDX-License-Identifier: MIT
#include "tests/ranks/ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>

namespace octavo_train::ranks {
namespace {

std::vector<Case>& cases() {
  static auto* const all = new std::vector<Case>();
  return *all;
}

std::map<std::string, int (*)(const Arguments&)>& programs() {
  static auto* const all = new std::map<std::string, int (*)(const Arguments&)>();
  return *all;
}

std::string suite_of(int ranks) { return "Ranks" + std::to_string(ranks); }

// Writes one line to a file for each event of a rank: the case, the event, and the text with escaped
// newlines.
class Events {
 public:
  explicit Events(const std::string& file) : out_(file) {}
  void say(const std::string& name, const std::string& what, std::string text = "") {
    for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2)
      text.replace(at, 1, "\\n");
    out_ << name << '\t' << what << '\t' << text << std::endl;
  }

 private:
  std::ofstream out_;
};

// Runs one case and records failed assertions and exceptions. Returns false if the process group is no longer
// usable.
bool run_case(const Case& one, ProcessGroup& process_group, Events& events) {
  events.say(one.name, "begin");
  process_group.set_activity("the case " + one.name);
  testing::TestPartResultArray results;
  bool usable = true;
  {
    testing::ScopedFakeTestPartResultReporter reporter(&results);
    try {
      one.body(process_group);
      process_group.gather("");  // waits until all ranks have finished the case
    } catch (const octavo_train::ProcessGroupError& error) {
      events.say(one.name, "failed", error.what());
      usable = false;
    } catch (const std::exception& error) {
      events.say(one.name, "failed", std::string("exception: ") + error.what());
      process_group.fail("an exception in the case " + one.name);
      usable = false;
    }
  }
  for (int i = 0; i < results.size(); ++i) {
    const testing::TestPartResult& part = results.GetTestPartResult(i);
    if (!part.failed()) continue;
    events.say(one.name, "failed",
               std::string(part.file_name() != nullptr ? part.file_name() : "?") + ":" +
                   std::to_string(part.line_number()) + ": " + part.message());
  }
  if (usable) events.say(one.name, "end");
  return usable;
}

// Runs cases as one rank of a group. `arguments` are the file for its events, then the cases' names.
int run_cases(const Arguments& arguments) {
  Events events(arguments.at(0) + "-" + std::to_string(place_here().rank));
  const std::set<std::string> chosen(arguments.begin() + 1, arguments.end());
  std::unique_ptr<ProcessGroup> process_group = join_here();
  for (const Case& one : cases())
    if (chosen.count(one.name) != 0 && !run_case(one, *process_group, events)) return 1;
  return 0;
}

// The failures that the ranks of a group reported, by case.
struct Group {
  std::map<std::string, std::string> failures;
};

void read_events(const std::string& file, const std::string& who, const Ended& ended,
                 const std::vector<std::string>& chosen, Group& group) {
  std::set<std::string> begun, done;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find('\t'), second = line.find('\t', first + 1);
    const std::string name = line.substr(0, first), what = line.substr(first + 1, second - first - 1);
    std::string text = line.substr(second + 1);
    for (std::size_t at = 0; (at = text.find("\\n", at)) != std::string::npos; ++at)
      text.replace(at, 2, "\n");
    if (what == "begin") begun.insert(name);
    if (what == "end") done.insert(name);
    if (what == "failed") group.failures[name] += who + ": " + text + "\n";
  }
  std::string how = ended.late          ? " was killed, because the group took too long"
                    : ended.signal != 0 ? " was ended by signal " + std::to_string(ended.signal)
                                        : " ended with code " + std::to_string(ended.code);
  for (const std::string& name : chosen) {
    if (done.count(name) != 0) continue;
    group.failures[name] += who + (begun.count(name) != 0 ? " did not finish;" : " did not come to it;") +
                            " it" + how + "\n" + ended.output;
  }
}

Group start_group(int ranks) {
  std::vector<std::string> chosen;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; suite.name() == suite_of(ranks) && j < suite.total_test_count(); ++j)
      if (suite.GetTestInfo(j)->should_run()) chosen.emplace_back(suite.GetTestInfo(j)->name());
  }
  ProcessOptions plan;
  plan.program = "cases";
  plan.ranks = ranks;
  plan.limit = std::chrono::seconds(150);
  const std::string file = scratch() + "/events-" + std::to_string(ranks);
  plan.arguments = {file};
  plan.arguments.insert(plan.arguments.end(), chosen.begin(), chosen.end());
  const std::vector<Ended> ended = Processes(plan).wait();
  Group group;
  for (std::size_t rank = 0; rank < ended.size(); ++rank) {
    const std::string number = std::to_string(rank);
    read_events(file + "-" + number, "rank " + number, ended[rank], chosen, group);
  }
  return group;
}

// Runs in the parent process. The first case of a number of ranks starts that group.
class CaseTest : public testing::Test {
 public:
  CaseTest(int ranks, std::string name) : ranks_(ranks), name_(std::move(name)) {}
  void TestBody() override {
    static std::map<int, Group> groups;
    if (groups.count(ranks_) == 0) groups.emplace(ranks_, start_group(ranks_));
    const auto& failures = groups.at(ranks_).failures;
    const auto found = failures.find(name_);
    if (found != failures.end()) {
      ADD_FAILURE() << found->second;
    }
  }

 private:
  int ranks_;
  std::string name_;
};

void register_cases() {
  for (const Case& one : cases()) {
    for (const int ranks : one.counts) {
      testing::RegisterTest(suite_of(ranks).c_str(), one.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [=, name = one.name]() -> testing::Test* { return new CaseTest(ranks, name); });
    }
  }
}

int run_program(const std::string& name, const Arguments& arguments) {
  testing::InitGoogleTest();
  at::set_num_threads(1);
  const auto found = programs().find(name);
  if (name != "cases" && found == programs().end()) {
    std::cerr << "ranks_test: no program " << name << '\n';
    return 2;
  }
  try {
    return name == "cases" ? run_cases(arguments) : found->second(arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

int run_tests(int argc, char** argv) {
  std::string folder = std::filesystem::temp_directory_path() / "octavo-ranks-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 2;
  setenv("OCTAVO_RANKS_SCRATCH", folder.c_str(), 1);
  testing::InitGoogleTest(&argc, argv);
  register_cases();
  const int code = RUN_ALL_TESTS();
  std::filesystem::remove_all(folder);
  return code;
}

}  // namespace

bool add_case(Case one) {
  cases().push_back(std::move(one));
  return true;
}

bool add_program(const std::string& name, int (*body)(const Arguments&)) {
  programs()[name] = body;
  return true;
}

std::string scratch() { return getenv("OCTAVO_RANKS_SCRATCH"); }

RankInfo place_here() {
  const RankInfo rank_info = octavo_train::rank_from_environment([](const char* name) -> const char* {
                               return getenv(name);
                             }).value();
  if (!rank_info.grouped()) throw std::runtime_error("this process is no rank");
  return rank_info;
}

std::unique_ptr<ProcessGroup> join_here(std::chrono::milliseconds timeout) {
  return ProcessGroup::join(place_here(), torch::kCPU, {.timeout = timeout, .start = 3 * kPatience}).value();
}

}  // namespace octavo_train::ranks

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "", option = "--program=";
  if (first.starts_with(option)) {
    return octavo_train::ranks::run_program(first.substr(option.size()), {argv + 2, argv + argc});
  }
  return octavo_train::ranks::run_tests(argc, argv);
}
