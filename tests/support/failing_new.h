// Memory that runs out on request, for a test that is linked with failing_new.cc.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace test {

// The number of allocations of this thread that still succeed; negative: all do.
extern thread_local std::int64_t
    allocations_left;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace test
