// Random delays of queues, for tests. The results must not depend on the order of events that they cause.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>

namespace octavo::offload {

struct Delays {
  std::uint64_t seed = 0;
  std::int64_t microseconds = 0;  // the longest delay; 0: no delays

  // Parses OCTAVO_OFFLOAD_DELAYS, "SEED:MICROSECONDS". Without the variable there are no delays.
  static Result<Delays> from_environment();
  // Returns the delays of the queue with this number.
  [[nodiscard]] Delays of(std::uint64_t queue) const;
  // Returns the next delay: half of them are 0. REQUIRES: one thread at a time.
  std::int64_t next();
  void sleep();
};

}  // namespace octavo::offload
