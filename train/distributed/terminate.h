// A message for a rank that C++ ends: an exception in a thread of a library, or memory that is too scarce
// even to report that.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::train {

// From now on std::terminate prints "octavo: rank N: ..." with the exception before it aborts, and allocates
// nothing for it.
void print_before_terminate(int rank);

}  // namespace octavo::train
