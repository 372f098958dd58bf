// Several checks as one.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <initializer_list>

namespace octavo {

// The first failure, in the order written. All checks are made, so none may rely on one before it.
inline Status first_error(std::initializer_list<Status> checks) {
  for (const Status& check : checks) {
    if (!check.ok()) return check;
  }
  return {};
}

}  // namespace octavo
