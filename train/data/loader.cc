// Workers that fill a ring of batches in order; see loader.h. A batch is numbered from the last reset on, and
// number n waits in slot n % slots. Invariant: taken_ <= claimed_ <= taken_ + slots; a worker writes only the
// slot of the number it has claimed, without the lock, and nobody else touches a slot that is being filled.
// Buffers are allocated by the caller's thread alone: no worker can fail.
// SPDX-License-Identifier: MIT
#include "train/data/loader.h"

#include <octavo/backend.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace octavo::train {

class BatchLoader::Work {
 public:
  Work(Sampler sampler, std::int64_t rows, std::uint64_t first_draw, int workers)
      : rows_(static_cast<std::uint64_t>(rows)),
        row_bytes_(static_cast<std::size_t>(sampler.block_size()) + 1),
        sampler_(std::move(sampler)),
        first_draw_(first_draw),
        slots_(static_cast<std::size_t>(workers) * 2) {
    for (Slot& slot : slots_) slot.bytes = buffer();
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
    for (std::thread& thread : threads_) thread.join();
  }

  void start_thread() {
    threads_.emplace_back([this] { work(); });
  }
  [[nodiscard]] std::size_t threads() const { return threads_.size(); }

  Batch next() {
    Batch out{0, buffer()};
    if (slots_.empty()) {
      out.first_draw = draw_of(taken_++);
      fill(out.first_draw, out.bytes);
      return out;
    }
    {
      std::unique_lock lock(mutex_);
      Slot& slot = slots_[taken_ % slots_.size()];
      filled_.wait(lock, [&] { return slot.state == State::filled; });
      out.first_draw = draw_of(taken_++);
      slot.bytes.swap(out.bytes);
      slot.state = State::free;
    }
    to_do_.notify_one();
    return out;
  }

  void reset(Sampler sampler, std::uint64_t first_draw) {
    {
      std::unique_lock lock(mutex_);
      // Workers still read the old sampler for the slots they are filling. Claims are off, so no worker
      // claims a new slot while this waits.
      paused_ = true;
      filled_.wait(lock, [&] { return filling_ == 0; });
      paused_ = false;
      sampler_ = std::move(sampler);
      first_draw_ = first_draw;
      taken_ = claimed_ = 0;
      for (Slot& slot : slots_) slot.state = State::free;
    }
    to_do_.notify_all();
  }

 private:
  enum class State { free, filling, filled };
  struct Slot {
    State state = State::free;
    std::vector<std::uint8_t> bytes;
  };

  [[nodiscard]] std::uint64_t draw_of(std::uint64_t batch) const { return first_draw_ + batch * rows_; }
  [[nodiscard]] std::vector<std::uint8_t> buffer() const {
    return std::vector<std::uint8_t>(rows_ * row_bytes_);
  }

  void fill(std::uint64_t first_draw, std::span<std::uint8_t> out) const {
    for (std::uint64_t row = 0; row < rows_; ++row) {
      sampler_.read(first_draw + row, out.subspan(row * row_bytes_, row_bytes_));
    }
  }

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
      fill(first_draw, slot.bytes);
      lock.lock();
      slot.state = State::filled;
      --filling_;
      filled_.notify_one();  // of the caller's thread: it alone waits for this
    }
  }

  const std::uint64_t rows_;
  const std::size_t row_bytes_;

  std::mutex mutex_;
  std::condition_variable to_do_;
  std::condition_variable filled_;
  Sampler sampler_;  // changed only while nothing is being filled
  std::uint64_t first_draw_;
  std::uint64_t taken_ = 0;    // batches that next() gave
  std::uint64_t claimed_ = 0;  // batches that a worker has or had
  std::vector<Slot> slots_;
  int filling_ = 0;
  bool paused_ = false;
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

BatchLoader::BatchLoader(std::unique_ptr<Work> work) : work_(std::move(work)) {}
BatchLoader::BatchLoader(BatchLoader&& other) noexcept = default;
BatchLoader& BatchLoader::operator=(BatchLoader&& other) noexcept = default;
BatchLoader::~BatchLoader() = default;

Result<BatchLoader> BatchLoader::start(Sampler sampler, std::int64_t rows, std::uint64_t first_draw,
                                       int workers) {
  const std::int64_t row_bytes = sampler.block_size() + 1;
  std::unique_ptr<Work> work;
  const auto batch = [&] { return std::to_string(rows) + " x " + std::to_string(row_bytes) + " bytes"; };
  if (rows > std::numeric_limits<std::ptrdiff_t>::max() / row_bytes) {
    return Status::invalid("per_device_train_batch_size: a batch of " + batch() +
                           " has no place in memory; use a smaller one");
  }
  try {
    work = std::make_unique<Work>(std::move(sampler), rows, first_draw, workers);
    for (int i = 0; i < workers; ++i) work->start_thread();
  } catch (const std::bad_alloc&) {
    return Status::failed("out of memory for " + std::to_string(2 * workers) + " batches of " + batch() +
                          "; use fewer data.dataloader_num_workers or a smaller per_device_train_batch_size");
  } catch (const std::system_error& error) {
    return Status::failed("data.dataloader_num_workers: got " + std::to_string(workers) + ", but only " +
                          std::to_string(work->threads()) + " threads could be started (" +
                          error.code().message() + "); use fewer");
  }
  return BatchLoader(std::move(work));
}

BatchLoader::Batch BatchLoader::next() { return work_->next(); }

void BatchLoader::reset(Sampler sampler, std::uint64_t first_draw) {
  work_->reset(std::move(sampler), first_draw);
}

}  // namespace octavo::train
