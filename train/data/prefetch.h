// Batches that threads make ahead. What next() gives depends on positions alone: it is the same for any
// number of workers. The queue is bounded (two batches per worker). Batches never end: the caller knows when
// the run is over.
//
//   auto batches = octavo::train::Prefetch<Batch>::start({rows_at, make}, first, 2);
//   if (!batches.ok()) show(batches.status().message());
//   Batch batch = batches->next();  // make(first, n), where n is rows_at(first)
//   batches->position();            // first + n: the next batch is make(first + n, rows_at(first + n))
//
// One thread at a time may call it. Moved-from ones may only be destroyed or assigned to.
//
// A batch is numbered from the last reset on, and number n waits in slot n % slots. Where it begins is known
// once its predecessor is claimed: so claims are made one after the other, and claiming_ is the right to make
// the next one. rows_at may take long (it may plan thousands of samples), so it is called without the lock.
// Invariant: taken_ <= claimed_ <= taken_ + slots; a worker writes only the slot of the number it has
// claimed, without the lock, and nobody else touches a slot that is being filled.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/threads.h"

#include <octavo/backend.h>
#include <octavo/status.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace octavo::train {

template <class T>
class Prefetch {
 public:
  // What batches are made of. Several threads call `make` at once; `rows_at` one at a time.
  struct Source {
    std::function<std::int64_t(std::uint64_t position)> rows_at;  // positions of the batch that begins there
    std::function<T(std::uint64_t position, std::int64_t rows)> make;
  };

  // `workers` threads; 0: next() does the work. An error if threads cannot be started. REQUIRES: workers >=
  // 0; rows_at gives 1 or more.
  static Result<Prefetch> start(Source source, std::uint64_t position, int workers) {
    auto work = std::make_unique<Work>(std::move(source), position, workers);
    if (const std::string problem = work->start(static_cast<std::size_t>(workers)); !problem.empty()) {
      return Status::failed("data.dataloader_num_workers: got " + std::to_string(workers) + ", but only " +
                            std::to_string(work->threads()) + " threads could be started (" + problem +
                            "); use fewer");
    }
    return Prefetch(std::move(work));
  }

  // Throws what the making of this batch threw.
  T next() { return work_->next(); }

  // Where the batch begins that next() gives next.
  [[nodiscard]] std::uint64_t position() const { return work_->position(); }

  // From now on next() gives batches of `source`, from `position` on. Those that were prepared are dropped.
  void reset(Source source, std::uint64_t position) { work_->reset(std::move(source), position); }

 private:
  class Work {
   public:
    Work(Source source, std::uint64_t position, int workers)
        : source_(std::move(source)),
          position_(position),
          claim_at_(position),
          slots_(static_cast<std::size_t>(workers) * 2) {}
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    ~Work() {
      {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
      }
      to_do_.notify_all();
      for (std::thread& thread : threads_) thread.join();  // they finish what they are making
    }

    // Returns why fewer threads were started; empty: all were.
    std::string start(std::size_t workers) {
      StartedThreads started = start_threads(workers, [this] { work(); });
      threads_ = std::move(started.threads);
      return started.problem;
    }
    [[nodiscard]] std::size_t threads() const { return threads_.size(); }

    [[nodiscard]] std::uint64_t position() const { return position_; }

    T next() {
      if (slots_.empty()) {
        const std::uint64_t first = position_;
        const std::int64_t rows = source_.rows_at(first);
        position_ += static_cast<std::uint64_t>(rows);
        return source_.make(first, rows);
      }
      Slot got;
      {
        std::unique_lock lock(mutex_);
        Slot& slot = slots_[taken_ % slots_.size()];
        filled_.wait(lock, [&] { return slot.state == State::filled; });
        ++taken_;
        got = std::exchange(slot, Slot());
      }
      to_do_.notify_one();
      position_ += static_cast<std::uint64_t>(got.rows);
      if (got.error != nullptr) std::rethrow_exception(got.error);
      return std::move(*got.batch);
    }

    void reset(Source source, std::uint64_t position) {
      {
        std::unique_lock lock(mutex_);
        // Workers still use the old source for the slots they are filling. Claims are off, so no worker
        // claims a new slot while this waits.
        paused_ = true;
        filled_.wait(lock, [&] { return filling_ == 0; });
        paused_ = false;
        source_ = std::move(source);
        position_ = claim_at_ = position;
        taken_ = claimed_ = 0;
        for (Slot& slot : slots_) slot = Slot();
      }
      to_do_.notify_all();
    }

   private:
    enum class State { free, filling, filled };
    struct Slot {
      State state = State::free;
      std::int64_t rows = 0;  // positions; 0: they could not be told
      std::optional<T> batch;
      std::exception_ptr error;  // instead of a batch
    };

    [[nodiscard]] bool can_claim() const {
      return !paused_ && !claiming_ && claimed_ - taken_ < slots_.size();
    }

    void work() {
      use_process_cpus();  // not the one CPU that LibTorch's OpenMP runtime may have bound the caller to
      std::unique_lock lock(mutex_);
      for (;;) {
        to_do_.wait(lock, [&] { return stopping_ || can_claim(); });
        if (stopping_) return;
        Slot& slot = slots_[claimed_++ % slots_.size()];
        slot.state = State::filling;
        ++filling_;
        const std::uint64_t first = claim_at_;
        claiming_ = true;
        lock.unlock();
        fill(slot, first);
        lock.lock();
        slot.state = State::filled;
        --filling_;
        filled_.notify_one();  // of the caller's thread: it alone waits for this
      }
    }

    // The batch that begins at `first`. Once its end is known, another worker may claim the next one.
    void fill(Slot& slot, std::uint64_t first) {
      try {
        slot.rows = source_.rows_at(first);
      } catch (...) {
        slot.error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        claim_at_ += static_cast<std::uint64_t>(slot.rows);
        claiming_ = false;
      }
      to_do_.notify_one();
      if (slot.error != nullptr) return;
      try {
        slot.batch.emplace(source_.make(first, slot.rows));
      } catch (...) {
        slot.error = std::current_exception();
      }
    }

    std::mutex mutex_;
    std::condition_variable to_do_;
    std::condition_variable filled_;
    Source source_;              // changed only while nothing is being filled
    std::uint64_t position_;     // of the batch that next() gives next; of the caller's thread alone
    std::uint64_t claim_at_;     // of the batch that is claimed next; not known while claiming_
    std::uint64_t taken_ = 0;    // batches that next() gave
    std::uint64_t claimed_ = 0;  // batches that a worker has or had
    std::vector<Slot> slots_;
    int filling_ = 0;
    bool claiming_ = false;
    bool paused_ = false;
    bool stopping_ = false;
    std::vector<std::thread> threads_;  // last: they use all of the above
  };

  explicit Prefetch(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  std::unique_ptr<Work> work_;
};

}  // namespace octavo::train
