// How much host memory is left.
// SPDX-License-Identifier: MIT
#include "offload/limits.h"

#include <octavo/offload.h>

namespace octavo {

std::int64_t host_room() { return offload::memory_room("/"); }

}  // namespace octavo
