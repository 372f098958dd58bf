// Work on numbered things by several threads, which take the next number each time.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo::recordings {

using Advance = std::function<void(std::int64_t done)>;  // called by one thread at a time

// As many threads as the machine has processors, for 0.
inline int threads_for(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Calls work(i) for 0 … count - 1. After an error no new number is taken; of several errors that of the
// lowest number is given, so that it does not depend on the threads which one a user sees first.
template <class Work>
Status for_each_number(std::int64_t count, int threads, const Advance& advance, Work work) {
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex lock;
  std::int64_t done = 0, failed_at = count;
  Status first;
  const auto worker = [&] {
    for (std::int64_t i = next++; i < count && !stop; i = next++) {
      Status status = work(i);
      const std::scoped_lock locked(lock);
      if (!status.ok()) {
        stop = true;
        if (i < failed_at) {
          failed_at = i;
          first = std::move(status);
        }
        return;
      }
      ++done;
      if (advance) advance(done);
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < std::min<std::int64_t>(threads_for(threads), count); ++i) others.emplace_back(worker);
  worker();
  for (std::thread& each : others) each.join();
  return first;
}

}  // namespace octavo::recordings
