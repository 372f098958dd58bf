// Work on numbered things by several threads, which take the next number each time.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/threads.h"

#include <octavo/status.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace octavo::recordings {

using Advance = std::function<void(std::int64_t done)>;  // called by one thread at a time

// As many threads as the machine has processors, for 0.
inline int threads_for(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Calls work(i) for 0 … count - 1. After an error only lower numbers are worked on, and the error of the
// lowest number is returned, so that it does not depend on the threads. Throws what work(i) throws. Where the
// system refuses threads, fewer do the work.
template <class Work>
Status for_each_number(std::int64_t count, int threads, const Advance& advance, Work work) {
  std::mutex lock;
  std::int64_t done = 0, failed_at = count;
  Status first;
  train::for_each_index(static_cast<std::uint64_t>(count), static_cast<std::uint64_t>(threads_for(threads)),
                        [&](std::uint64_t index) {
                          const auto i = static_cast<std::int64_t>(index);
                          {
                            const std::scoped_lock locked(lock);
                            if (i > failed_at) return;
                          }
                          Status status = work(i);
                          const std::scoped_lock locked(lock);
                          if (status.ok()) {
                            ++done;
                            if (advance) advance(done);
                            return;
                          }
                          if (i >= failed_at) return;
                          failed_at = i;
                          first = std::move(status);
                        });
  return first;
}

}  // namespace octavo::recordings
