// Prepares batches ahead in worker threads. The results of next() depend only on positions: they are the same
// for any number of workers. The queue is bounded (two batches per worker). Batches never end: the caller
// decides when the run is over.
//
//   auto batches = octavo_train::Prefetch<Batch>::start({rows_at, make}, first, 2);
//   if (!batches.ok()) show(batches.status().message());
//   Batch batch = batches->next();  // make(first, n), where n is rows_at(first)
//   batches->position();            // first + n: the next batch is make(first + n, rows_at(first + n))
//
// One thread at a time may call it. A moved-from object may only be destroyed or assigned to.
//
// Batches are numbered from the last reset, and batch n waits in slot n % slots. The start of a batch is
// known only after its predecessor was claimed, so claims happen one after the other; claiming_ is true while
// a worker makes a claim. rows_at may take long (it may compute thousands of samples), so it is called
// without the lock. Invariant: taken_ <= claimed_ <= taken_ + slots. A worker writes only the slot of the
// batch it has claimed, without the lock, and no other thread touches a slot that is being filled.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/parallel_for.h"
#include "train/base/status.h"

#include <octavo/backend.h>

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

namespace octavo_train {

template <class T>
class Prefetch {
 public:
  // The functions that produce batches. Several threads call `make` concurrently; `rows_at` is called by one
  // at a time.
  struct Source {
    std::function<std::int64_t(std::uint64_t position)> rows_at;  // positions of the batch that begins there
    std::function<T(std::uint64_t position, std::int64_t rows)> make;
  };

  // Starts `workers` threads; with 0, next() does the work. Returns an error if threads cannot be started.
  // REQUIRES: workers >= 0; rows_at returns 1 or more.
  static Result<Prefetch> start(Source source, std::uint64_t position, int workers) {
    auto work = std::make_unique<Work>(std::move(source), position, workers);
    if (const std::string problem = work->start(static_cast<std::size_t>(workers)); !problem.empty()) {
      return failed_error(
          "data.dataloader_num_workers: got {}, but only {} threads could be started ({}); use fewer",
          workers, work->threads(), problem);
    }
    return Prefetch(std::move(work));
  }

  // Returns the next batch. Rethrows what `rows_at` or `make` threw for it.
  T next() { return work_->next(); }

  // Returns the position at which the next batch of next() begins.
  [[nodiscard]] std::uint64_t position() const { return work_->position(); }

  // Makes next() return batches of `source` from `position` on. Prepared batches are dropped.
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
      for (std::thread& thread : threads_) thread.join();  // workers finish their current batch
    }

    // Returns why fewer threads were started; empty if all were.
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
      std::int64_t rows = 0;  // positions; 0 if rows_at threw
      std::optional<T> batch;
      std::exception_ptr error;  // set instead of a batch
    };

    [[nodiscard]] bool can_claim() const {
      return !paused_ && !claiming_ && claimed_ - taken_ < slots_.size();
    }

    void work() {
      octavo::use_process_cpus();  // not the one CPU that LibTorch's OpenMP runtime may have bound the caller
                                   // to
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
        filled_.notify_one();  // only the caller's thread waits for this
      }
    }

    // Makes the batch that begins at `first`. Once its end is known, another worker may claim the next one.
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
    Source source_;              // changed only while no slot is being filled
    std::uint64_t position_;     // the position of the next() batch; used only by the caller's thread
    std::uint64_t claim_at_;     // position of the next batch to claim; invalid while claiming_
    std::uint64_t taken_ = 0;    // batches that next() has returned
    std::uint64_t claimed_ = 0;  // batches that workers have claimed
    std::vector<Slot> slots_;
    int filling_ = 0;
    bool claiming_ = false;
    bool paused_ = false;
    bool stopping_ = false;
    std::vector<std::thread> threads_;  // last member: the threads use all members above
  };

  explicit Prefetch(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  std::unique_ptr<Work> work_;
};

// Returns a source in which an item spans `ranks` consecutive batches of `source`, of which `make` produces
// the one of `rank`. Any thread may call source.rows_at. `Source` is Prefetch<T>::Source. REQUIRES: 0 <= rank
// < ranks.
template <class Source>
Source shared_by_rank(Source source, int rank, int ranks) {
  if (ranks == 1) return source;
  // Returns the position after `count` batches that begin at `position`.
  const auto after = [rows_at = source.rows_at](std::uint64_t position, int count) {
    for (int i = 0; i < count; ++i) position += static_cast<std::uint64_t>(rows_at(position));
    return position;
  };
  return {[after, ranks](std::uint64_t position) {
            return static_cast<std::int64_t>(after(position, ranks) - position);
          },
          [after, rank, source = std::move(source)](std::uint64_t position, std::int64_t /*rows*/) {
            const std::uint64_t mine = after(position, rank);
            return source.make(mine, source.rows_at(mine));
          }};
}

}  // namespace octavo_train
