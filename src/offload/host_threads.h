// How many threads the CPU's part of an offloaded step takes.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/threads.h"

#include <algorithm>

namespace octavo::offload {

// `asked` (0: nobody has): all of the pool but one, since the framework's own thread works meanwhile.
inline int host_threads(int asked = 0) {
  return asked > 0 ? asked : std::max(1, cpu::default_pool_threads() - 1);
}

}  // namespace octavo::offload
