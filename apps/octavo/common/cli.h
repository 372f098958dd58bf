// Helpers that the subcommands share: errors, registration on the command line, and formatting. Invariant:
// only run_command (command.cc) prints errors and chooses the process's exit code; a subcommand throws a
// Failure.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

inline constexpr int kExitFailure = 1;  // a valid request that could not be served
inline constexpr int kExitUsage = 2;    // the request itself is wrong

class Failure : public std::runtime_error {
 public:
  Failure(int exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}
  [[nodiscard]] int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Throws a Failure if `status` is not ok. `flag` replaces the library's name of the argument ("[octavo]
// state: ") in the message, because the user gave the flag.
inline void check(const Status& status, std::string_view flag = {}) {
  if (status.ok()) return;
  std::string message(status.message());
  if (!flag.empty()) {
    const std::size_t got = message.find(": got ");
    message = std::string(flag) + (got == std::string::npos ? ": " + message : message.substr(got));
  }
  throw Failure(status.code() == StatusCode::invalid_argument ? kExitUsage : kExitFailure, message);
}

// Returns the value of `result`, or throws as check() does.
template <class T>
T take(Result<T> result, std::string_view flag = {}) {
  check(result.status(), flag);
  return std::move(*result);
}

// Returns "a, b, c".
template <class Names>
std::string joined(const Names& names, std::string_view between = ", ") {
  std::string out;
  for (const auto& name : names) {
    if (!out.empty()) out += between;
    out += name;
  }
  return out;
}

// Each function adds its subcommand, with the work as its callback. The app must outlive the parse.
void add_info(CLI::App& app);
// Adds the trainer's commands, in a build that has the trainer. `argv` is the command line of this process,
// which octavo-trainer gets.
void add_train_commands(CLI::App& app, char** argv);
void add_data(CLI::App& app);
void add_export(CLI::App& app);
void add_report(CLI::App& app);
// Subcommands of data.
void add_data_check(CLI::App& data);
void add_make_speech(CLI::App& data);
void add_split(CLI::App& data);
void add_make_tokenizer(CLI::App& data);
// A subcommand of bench.
void add_bench_loader(CLI::App& bench);

}  // namespace octavo::cli
