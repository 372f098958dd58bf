// A queue whose work runs on a separate thread: the host queue of every device, and all queues of the CPU.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/queue.h"
#include "offload/test_delays.h"

#include <memory>
#include <string>

namespace octavo::offload {

// `row` is the queue's name in a trace. If `delays` is an error, or no thread can be started, every call of
// the queue returns that error.
std::unique_ptr<Queue> make_thread_queue(std::string row, Result<Delays> delays);

// Returns the error for the use of `what` in a child of the process that made it.
Status forked(const std::string& what);

}  // namespace octavo::offload
