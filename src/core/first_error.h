// Runs several checks and returns the first error.
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
