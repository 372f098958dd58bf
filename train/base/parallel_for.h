// Starts threads that share work. The system may refuse a thread, because memory is short or because of a
// limit on processes. std::thread then throws, and the destructors of the threads that have started end the
// process or wait for ever. start_threads() returns the threads that did start instead.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace octavo_train {

struct StartedThreads {
  std::vector<std::thread> threads;  // the caller joins them
  std::string problem;               // why fewer threads started; empty if all did
};

// Starts up to `count` threads that each call `work`. After the first refusal it starts no more. The caller
// must do without the missing threads, even without any.
template <class Work>
StartedThreads start_threads(std::size_t count, const Work& work) {
  StartedThreads out;
  out.threads.reserve(count);
  try {
    while (out.threads.size() < count) out.threads.emplace_back(work);
  } catch (const std::system_error& error) {
    out.problem = error.code().message();
  } catch (const std::bad_alloc&) {
    out.problem = "out of memory";
  }
  return out;
}

// Calls body(0) ... body(count - 1) from the calling thread and up to `threads` - 1 others. Rethrows an
// exception of one of the calls; then some indices were not processed.
template <class Body>
void parallel_for(std::uint64_t count, std::uint64_t threads, const Body& body) {
  std::atomic<std::uint64_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (std::uint64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
      next = count;
    }
  };
  const std::uint64_t wanted = threads < count ? threads : count;
  StartedThreads others = start_threads(wanted > 0 ? wanted - 1 : 0, work);
  work();
  for (std::thread& thread : others.threads) thread.join();
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace octavo_train
