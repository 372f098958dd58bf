// A queue whose work runs on a thread of its own: the host's queue of every link, and all queues of a link of
// the CPU.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/queue.h"
#include "offload/test_delays.h"

#include <memory>
#include <string>

namespace octavo::offload {

// `row`: what a trace calls the queue. Where `delays` are an error, or there is no thread to be had, the
// queue has failed from the start: its calls return that.
std::unique_ptr<Queue> make_thread_queue(std::string row, Result<Delays> delays);

// The error of everything that is used in a child of the process that made it.
Status forked(const std::string& what);

}  // namespace octavo::offload
