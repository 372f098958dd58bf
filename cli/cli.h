// The errors of a command. Invariant: only run_command (command.cc) prints errors and chooses the process's
// exit code; a subcommand throws a Failure.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/text.h"

#include <octavo/status.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace octavo::cli {

using octavo_train::joined;

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

}  // namespace octavo::cli
