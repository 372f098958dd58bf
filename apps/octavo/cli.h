// What the subcommands share: how they fail, how they join the command line, and small formatting helpers.
// Invariant: only main.cc prints errors and chooses the process's exit code; a subcommand throws a Failure.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

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

// Throws if `status` is not ok; `what` (a flag, a file) goes before the library's message.
inline void check(const Status& status, std::string_view what = {}) {
  if (status.ok()) return;
  const std::string prefix = what.empty() ? std::string() : std::string(what) + ": ";
  throw Failure(status.code() == StatusCode::invalid_argument ? kExitUsage : kExitFailure,
                prefix + status.message());
}

// The value of `result`, or check's failure.
template <class T>
T take(Result<T> result, std::string_view what = {}) {
  check(result.status(), what);
  return std::move(*result);
}

// Each adds its subcommand, with the work as its callback. The app must outlive the parse.
void add_info(CLI::App& app);
void add_bench(CLI::App& app);

}  // namespace octavo::cli
