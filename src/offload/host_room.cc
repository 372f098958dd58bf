// How much host memory is left.
// SPDX-License-Identifier: MIT
#include "offload/cgroup_limits.h"

#include <octavo/offload.h>

namespace octavo {

std::int64_t host_room() { return offload::available_memory("/"); }

}  // namespace octavo
