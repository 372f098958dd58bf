// Helpers that return errors: one of several checks, or that of one call.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <initializer_list>

namespace octavo {

// Returns the first error in the order written. All checks run, so none may depend on an earlier one.
inline Status first_error(std::initializer_list<Status> checks) {
  for (const Status& check : checks) {
    if (!check.ok()) return check;
  }
  return {};
}

}  // namespace octavo

// Evaluates an expression of type Status and returns it from the calling function if it is an error.
#define OCTAVO_TRY(...)                                                          \
  do {                                                                           \
    if (::octavo::Status status_ = (__VA_ARGS__); !status_.ok()) return status_; \
  } while (false)
