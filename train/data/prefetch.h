// Batches that threads make ahead. What next() gives depends on the draws alone: it is the same for any
// number of workers. The queue is bounded (two batches per worker). Batches never end: the caller knows when
// the run is over.
//
//   auto batches = octavo::train::Prefetch<Batch>::start(make, 8, first_draw, 2);
//   if (!batches.ok()) show(batches.status().message());
//   Batch batch = batches->next();  // make(first_draw), then make(first_draw + 8), …
//
// One thread at a time may call it. Moved-from ones may only be destroyed or assigned to.
//
// A batch is numbered from the last reset on, and number n waits in slot n % slots. Invariant: taken_ <=
// claimed_ <= taken_ + slots; a worker writes only the slot of the number it has claimed, without the lock,
// and nobody else touches a slot that is being filled.
// SPDX-License-Identifier: MIT
#pragma once

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
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace octavo::train {

template <class T>
class Prefetch {
 public:
  // The batch that begins with a draw. Several threads call it at once.
  using Make = std::function<T(std::uint64_t first_draw)>;

  // `workers` threads; 0: next() does the work. An error if threads cannot be started. REQUIRES: rows >= 1,
  // the draws of a batch; workers >= 0.
  static Result<Prefetch> start(Make make, std::int64_t rows, std::uint64_t first_draw, int workers) {
    auto work = std::make_unique<Work>(std::move(make), rows, first_draw, workers);
    try {
      for (int i = 0; i < workers; ++i) work->start_thread();
    } catch (const std::system_error& error) {
      return Status::failed("data.dataloader_num_workers: got " + std::to_string(workers) + ", but only " +
                            std::to_string(work->threads()) + " threads could be started (" +
                            error.code().message() + "); use fewer");
    }
    return Prefetch(std::move(work));
  }

  // Throws what the making of this batch threw.
  T next() { return work_->next(); }

  // From now on next() gives what `make` makes, from first_draw on. Batches that were prepared are dropped.
  void reset(Make make, std::uint64_t first_draw) { work_->reset(std::move(make), first_draw); }

 private:
  class Work {
   public:
    Work(Make make, std::int64_t rows, std::uint64_t first_draw, int workers)
        : rows_(static_cast<std::uint64_t>(rows)),
          make_(std::move(make)),
          first_draw_(first_draw),
          slots_(static_cast<std::size_t>(workers) * 2) {
      threads_.reserve(static_cast<std::size_t>(workers));
    }
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

    void start_thread() {
      threads_.emplace_back([this] { work(); });
    }
    [[nodiscard]] std::size_t threads() const { return threads_.size(); }

    T next() {
      if (slots_.empty()) return make_(draw_of(taken_++));
      Slot got;
      {
        std::unique_lock lock(mutex_);
        Slot& slot = slots_[taken_ % slots_.size()];
        filled_.wait(lock, [&] { return slot.state == State::filled; });
        ++taken_;
        got = std::exchange(slot, Slot());
      }
      to_do_.notify_one();
      if (got.error != nullptr) std::rethrow_exception(got.error);
      return std::move(*got.batch);
    }

    void reset(Make make, std::uint64_t first_draw) {
      {
        std::unique_lock lock(mutex_);
        // Workers still use the old function for the slots they are filling. Claims are off, so no worker
        // claims a new slot while this waits.
        paused_ = true;
        filled_.wait(lock, [&] { return filling_ == 0; });
        paused_ = false;
        make_ = std::move(make);
        first_draw_ = first_draw;
        taken_ = claimed_ = 0;
        for (Slot& slot : slots_) slot = Slot();
      }
      to_do_.notify_all();
    }

   private:
    enum class State { free, filling, filled };
    struct Slot {
      State state = State::free;
      std::optional<T> batch;
      std::exception_ptr error;  // instead of a batch
    };

    [[nodiscard]] std::uint64_t draw_of(std::uint64_t batch) const { return first_draw_ + batch * rows_; }
    [[nodiscard]] bool can_claim() const { return !paused_ && claimed_ - taken_ < slots_.size(); }

    void work() {
      use_process_cpus();  // not the one CPU that LibTorch's OpenMP runtime may have bound the caller to
      std::unique_lock lock(mutex_);
      for (;;) {
        to_do_.wait(lock, [&] { return stopping_ || can_claim(); });
        if (stopping_) return;
        const std::uint64_t batch = claimed_++;
        Slot& slot = slots_[batch % slots_.size()];
        slot.state = State::filling;
        ++filling_;
        const std::uint64_t first_draw = draw_of(batch);
        lock.unlock();
        try {
          slot.batch.emplace(make_(first_draw));
        } catch (...) {
          slot.error = std::current_exception();
        }
        lock.lock();
        slot.state = State::filled;
        --filling_;
        filled_.notify_one();  // of the caller's thread: it alone waits for this
      }
    }

    const std::uint64_t rows_;

    std::mutex mutex_;
    std::condition_variable to_do_;
    std::condition_variable filled_;
    Make make_;  // changed only while nothing is being filled
    std::uint64_t first_draw_;
    std::uint64_t taken_ = 0;    // batches that next() gave
    std::uint64_t claimed_ = 0;  // batches that a worker has or had
    std::vector<Slot> slots_;
    int filling_ = 0;
    bool paused_ = false;
    bool stopping_ = false;
    std::vector<std::thread> threads_;  // last: they use all of the above
  };

  explicit Prefetch(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  std::unique_ptr<Work> work_;
};

}  // namespace octavo::train
