// SPDX-License-Identifier: MIT
#include "cpu/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace octavo::cpu {

#if defined(__x86_64__)
FloatMode::FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
FloatMode::~FloatMode() { _mm_setcsr(saved_); }
#else
FloatMode::FloatMode() {
  std::fegetenv(&saved_);
  std::fesetenv(FE_DFL_ENV);
}
FloatMode::~FloatMode() { std::fesetenv(&saved_); }
#endif

namespace {

struct Job {
  std::int64_t count;
  BodyRef body;
  std::atomic<std::int64_t> next{0};

  void work() {
    const FloatMode mode;
    for (std::int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(i);
    }
  }
};

class Pool {
 public:
  // Workers wait for a new word: a generation, and how many of them take part in it. Both in one word,
  // because a worker that sits a generation out may look only when the next has begun.
  void run(Job& job, int helpers) {
    helpers = hire(helpers);
    job_ = &job;
    working_.store(helpers, std::memory_order_relaxed);
    word_.store((word_.load(std::memory_order_relaxed) / kMaxHelpers + 1) * kMaxHelpers +
                    static_cast<std::uint64_t>(helpers),
                std::memory_order_release);
    word_.notify_all();
    job.work();
    for (int left = working_.load(std::memory_order_acquire); left != 0;
         left = working_.load(std::memory_order_acquire)) {
      working_.wait(left, std::memory_order_acquire);
    }
  }

 private:
  static constexpr std::uint64_t kMaxHelpers = 8192;

  // As many workers as wanted, or as the system grants.
  int hire(int wanted) {
    try {
      while (static_cast<int>(workers_.size()) < wanted) {
        const int index = static_cast<int>(workers_.size());
        workers_.emplace_back([this, index, seen = word_.load()] { loop(index, seen); });
      }
    } catch (const std::system_error&) {
      wanted = static_cast<int>(workers_.size());
    }
    return wanted;
  }

  void loop(int index, std::uint64_t seen) {
    for (;;) {
      word_.wait(seen, std::memory_order_acquire);
      seen = word_.load(std::memory_order_acquire);
      if (index >= static_cast<int>(seen % kMaxHelpers)) continue;
      job_->work();
      if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::atomic<std::uint64_t> word_{0};
  std::atomic<int> working_{0};
  Job* job_ = nullptr;
};

std::mutex pool_mutex;
std::atomic<int> default_threads{0};

// The pool of this process: a forked child has none of its parent's threads and starts anew (the old object
// leaks, its threads are gone).
Pool& pool() {
  static Pool* current = nullptr;
  static pid_t owner = 0;
  if (owner != getpid()) {
    current = new Pool;  // NOLINT(cppcoreguidelines-owning-memory): lives until the process ends
    owner = getpid();
  }
  return *current;
}

}  // namespace

int available_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int default_pool_threads() {
  const int threads = default_threads.load();
  return threads > 0 ? threads : available_cpus();
}

void set_default_pool_threads(int threads) { default_threads = threads; }

void parallel_for(std::int64_t count, int threads, BodyRef body) {
  if (count <= 0) return;
  if (threads <= 0) threads = default_pool_threads();
  const int helpers = static_cast<int>(std::min<std::int64_t>(threads, count)) - 1;
  Job job{count, body};
  std::unique_lock lock(pool_mutex, std::defer_lock);
  if (helpers > 0 && lock.try_lock()) {
    pool().run(job, helpers);
  } else {
    job.work();
  }
}

}  // namespace octavo::cpu
