// Runs numbered tasks on several threads; each thread repeatedly claims the next number.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/parallel_for.h"

#include <octavo/status.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace octavo::recordings {

using Advance = std::function<void(std::int64_t done)>;  // called by one thread at a time

// Returns `wanted`, or the number of the machine's processors if `wanted` is 0.
inline int threads_for(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Calls work(i) for 0 … count - 1. After an error, only lower numbers are still processed, and the error of
// the lowest number is returned, so that the result does not depend on thread timing. Exceptions of work(i)
// propagate. If the system refuses to start threads, fewer threads do the work.
template <class Work>
Status for_each_number(std::int64_t count, int threads, const Advance& advance, Work work) {
  std::mutex lock;
  std::int64_t done = 0, failed_at = count;
  Status first;
  octavo_train::parallel_for(static_cast<std::uint64_t>(count),
                             static_cast<std::uint64_t>(threads_for(threads)), [&](std::uint64_t index) {
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
