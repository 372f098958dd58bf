// Errors of the trainer: the library's Status and Result, and two macros that return early.
//
//   Result<Config> read_config(const std::string& path) {
//     ASSIGN_OR_RETURN(const std::string text, read_file(path));
//     RETURN_IF_ERROR(check(text));
//     return parse(text);
//   }
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>
#include <octavo/status.h>

#include <string>
#include <string_view>
#include <utility>

namespace octavo_train {

using octavo::Error;
using octavo::Result;
using octavo::Status;
using octavo::StatusCode;

inline const Status& status_of(const Status& status) { return status; }
template <class T>
Status status_of(const Result<T>& result) {
  return result.status();
}

// Return errors whose messages are formatted by fmt: `invalid_error("{}: got {}", name, value)`.
template <class... Args>
Status invalid_error(fmt::format_string<Args...> format, Args&&... args) {
  return Status::invalid(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
Status unsupported_error(fmt::format_string<Args...> format, Args&&... args) {
  return Status::unsupported(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
Status failed_error(fmt::format_string<Args...> format, Args&&... args) {
  return Status::failed(fmt::format(format, std::forward<Args>(args)...));
}

// Returns the status with the message `WHERE: MESSAGE` and the same code, or an OK status unchanged.
[[nodiscard]] inline Status with_context(std::string_view where, const Status& status) {
  return status.ok() ? status : Status(status.code(), std::string(where) + ": " + status.message());
}
// Returns the result; if it has an error, with `WHERE: ` before its message.
template <class T>
Result<T> with_context(std::string_view where, Result<T> result) {
  if (result.ok()) return result;
  return with_context(where, result.status());
}

}  // namespace octavo_train

#define OCTAVO_TRAIN_JOIN_(a, b) a##b
#define OCTAVO_TRAIN_JOIN(a, b) OCTAVO_TRAIN_JOIN_(a, b)

// Returns the error of `...`, a Status or a Result, from the enclosing function. Continues if there is none.
#define RETURN_IF_ERROR(...)                                           \
  do {                                                                 \
    if (auto status_or_result = (__VA_ARGS__); !status_or_result.ok()) \
      return ::octavo_train::status_of(status_or_result);              \
  } while (false)

// Declares a variable with the value of the Result `...`, or returns its error from the enclosing function.
// The declaration must not contain a comma outside parentheses.
#define ASSIGN_OR_RETURN(declaration, ...) \
  OCTAVO_TRAIN_ASSIGN_OR_RETURN(OCTAVO_TRAIN_JOIN(result_of_line_, __LINE__), declaration, __VA_ARGS__)
#define OCTAVO_TRAIN_ASSIGN_OR_RETURN(result, declaration, ...) \
  auto result = (__VA_ARGS__);                                  \
  if (!result.ok()) return result.status();                     \
  declaration = std::move(*result) /* NOLINT(bugprone-macro-parentheses): a declaration */
