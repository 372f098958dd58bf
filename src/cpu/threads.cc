// SPDX-License-Identifier: MIT
#include "cpu/threads.h"

#include "cpu/affinity.h"
#include "cpu/kernels.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
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
  std::atomic<bool> threw{false};
  std::exception_ptr error{};  // set by the thread that set `threw`

  void work(Scratch& scratch) noexcept {
    const FloatMode mode;
    try {
      for (std::int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
           i = next.fetch_add(1, std::memory_order_relaxed)) {
        body(i, scratch);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      if (!threw.exchange(true)) error = std::current_exception();
    }
  }
};

// Returns the working memory of a calling thread. It is allocated at the first use.
Scratch& callers_scratch() {
  thread_local const auto scratch = std::make_unique<Scratch>();
  return *scratch;
}

std::atomic<int> awake{0};  // the number of living StayAwake objects

struct Worker {
  std::unique_ptr<Scratch> scratch;
  std::thread thread;
};

class Pool {
 public:
  // Workers wait for a new word: a generation and the number of workers in it. Both are in one word, because
  // a worker that is not needed in one generation may look only when the next one has begun.
  //
  // A worker that wakes late finds the gate closed and sleeps again, because the caller waits only for the
  // workers that have begun. Otherwise a short job would last until the slowest worker has woken.
  void run(Job& job, int helpers, Scratch& scratch) noexcept {
    helpers = hire(helpers);
    job_ = &job;
    const std::uint64_t generation = word_.load(std::memory_order_relaxed) / kMaxHelpers + 1;
    gate_.store(generation * kGateSize + kOpen, std::memory_order_release);
    word_.store(generation * kMaxHelpers + static_cast<std::uint64_t>(helpers), std::memory_order_release);
    word_.notify_all();
    job.work(scratch);
    for (std::uint64_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
         gate % kGateSize != 0; gate = gate_.load(std::memory_order_acquire)) {
      gate_.wait(gate, std::memory_order_acquire);
    }
  }

 private:
  static constexpr std::uint64_t kMaxHelpers = 8192;
  static constexpr std::chrono::microseconds kAwake{500};
  // The gate contains a generation, a bit that allows workers to begin, and the number of workers that have
  // begun and not ended.
  static constexpr std::uint64_t kOpen = kMaxHelpers, kGateSize = 2 * kMaxHelpers;

  // Starts up to `wanted` workers and returns their number, which is smaller if the system has no threads or
  // memory for them.
  int hire(int wanted) noexcept {
    try {
      if (static_cast<int>(workers_.size()) >= wanted) return wanted;
      const cpu_set_t cpus = process_cpus();
      while (static_cast<int>(workers_.size()) < wanted) {
        const int index = static_cast<int>(workers_.size());
        Worker& worker = workers_.emplace_back();
        worker.scratch = std::make_unique_for_overwrite<Scratch>();
        worker.thread = std::thread([this, index, cpus, seen = word_.load(), own = worker.scratch.get()] {
          loop(index, seen, cpus, *own);
        });
      }
    } catch (const std::bad_alloc&) {
      wanted = drop_unfinished();
    } catch (const std::system_error&) {
      wanted = drop_unfinished();
    }
    return wanted;
  }

  // Removes a worker whose thread or memory could not be allocated.
  int drop_unfinished() noexcept {
    if (!workers_.empty() && !workers_.back().thread.joinable()) workers_.pop_back();
    return static_cast<int>(workers_.size());
  }

  // A new thread inherits the mask of its creator, which may be bound to one CPU. (The system rejects an
  // empty set.)
  void loop(int index, std::uint64_t seen, const cpu_set_t& cpus, Scratch& scratch) noexcept {
    (void)sched_setaffinity(0, sizeof cpus, &cpus);
    std::memset(&scratch, 0,
                sizeof scratch);  // its own thread touches the pages first, so they are near its CPU
    for (bool took_part = false;;) {
      if (std::exchange(took_part, false)) linger(seen);
      word_.wait(seen, std::memory_order_acquire);
      seen = word_.load(std::memory_order_acquire);
      if (index >= static_cast<int>(seen % kMaxHelpers) || !try_join(seen / kMaxHelpers)) continue;
      took_part = true;
      job_->work(scratch);
      // This is the last worker, and the caller waits for it.
      if ((gate_.fetch_sub(1, std::memory_order_acq_rel) - 1) % kGateSize == 0) gate_.notify_one();
    }
  }

  // Spins for a moment if more jobs are expected (StayAwake).
  void linger(std::uint64_t seen) const noexcept {
    if (awake.load(std::memory_order_relaxed) == 0) return;
    const auto end = std::chrono::steady_clock::now() + kAwake;
    while (word_.load(std::memory_order_relaxed) == seen && awake.load(std::memory_order_relaxed) != 0) {
      for (int i = 0; i < 64; ++i) pause();
      if (std::chrono::steady_clock::now() > end) return;
    }
  }
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  // Returns true if the job of this generation still accepts workers. The job then lasts until the worker has
  // ended.
  bool try_join(std::uint64_t generation) noexcept {
    std::uint64_t gate = gate_.load(std::memory_order_acquire);
    while (gate / kGateSize == generation && (gate & kOpen) != 0) {
      if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire))
        return true;
    }
    return false;
  }

  std::vector<Worker> workers_;
  std::atomic<std::uint64_t> word_{0};
  std::atomic<std::uint64_t> gate_{0};
  Job* job_ = nullptr;
};

std::mutex pool_mutex;
std::atomic<int> default_threads{0};

// Returns the pool of this process, or null if there is no memory for one. A forked child has none of its
// parent's threads, so it makes a new pool and leaks the old object.
Pool* pool() noexcept {
  static Pool* current = nullptr;
  static pid_t owner = 0;
  if (owner != getpid()) {
    current =
        new (std::nothrow) Pool;  // NOLINT(cppcoreguidelines-owning-memory): lives until the process ends
    owner = current != nullptr ? getpid() : 0;
  }
  return current;
}

}  // namespace

int available_cpus() {
  const cpu_set_t cpus = process_cpus();
  if (CPU_COUNT(&cpus) > 0) return CPU_COUNT(&cpus);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int default_pool_threads() {
  const int threads = default_threads.load();
  return threads > 0 ? threads : available_cpus();
}

void set_default_pool_threads(int threads) { default_threads = threads; }

StayAwake::StayAwake() { awake.fetch_add(1, std::memory_order_relaxed); }
StayAwake::~StayAwake() { awake.fetch_sub(1, std::memory_order_relaxed); }

void reserve_scratch() { (void)callers_scratch(); }

void parallel_for(std::int64_t count, int threads, BodyRef body) {
  if (count <= 0) return;
  if (threads <= 0) threads = default_pool_threads();
  const int helpers = static_cast<int>(std::min<std::int64_t>(threads, count)) - 1;
  Scratch& scratch = callers_scratch();
  Job job{count, body};
  std::unique_lock lock(pool_mutex, std::defer_lock);
  Pool* const shared = helpers > 0 && lock.try_lock() ? pool() : nullptr;
  if (shared != nullptr) {
    shared->run(job, helpers, scratch);
  } else {
    job.work(scratch);
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace octavo::cpu
