// Prints a message if C++ terminates a rank: because of an exception in a library's thread, or if memory is
// too scarce to report an error.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo_train {

// Makes std::terminate print "octavo: rank N: ..." with the exception before it aborts. Printing allocates no
// memory.
void print_before_terminate(int rank);

}  // namespace octavo_train
