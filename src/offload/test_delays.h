// Random delays of queues, for tests: whatever order of events they make, the results must be the same.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>

namespace octavo::offload {

struct Delays {
  std::uint64_t seed = 0;
  std::int64_t microseconds = 0;  // the longest one; 0: none

  // What OCTAVO_OFFLOAD_DELAYS asks for, or none; an error where it is not "SEED:MICROSECONDS".
  static Result<Delays> from_environment();
  // The delays of one queue among several.
  [[nodiscard]] Delays of(std::uint64_t queue) const;
  // The next one: half of them none, the others up to the longest. Not for two threads at a time.
  std::int64_t next();
  void sleep();
};

}  // namespace octavo::offload
