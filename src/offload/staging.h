// Device memory that states pass through, of one engine and one device: who uses which bytes until when.
// Steps share it, and one begins while others are under way: each waits for the bytes that it needs and for
// no others.
//
// A batch is what one trip through the device moves. Batches are numbered as they are queued, and the mark
// behind a batch's copies down says that it is over. The queue `down` is in order, so the mark of a batch
// stands for all before it.
// Threads: used by the thread that uses the engine.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/queue.h"

#include <octavo/optimizer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>

namespace octavo::offload {

class Staging {
 public:
  static constexpr std::int64_t kAlignment = 256;
  // At the memory's begin: scalars that were kept, and a step count that is at hand.
  static constexpr std::int64_t kScalarPlaces = 63, kScalarBytes = 64;
  static constexpr std::int64_t kHeadBytes = (kScalarPlaces + 1) * kScalarBytes;

  explicit Staging(Link& link) : up_{link.up(), 0}, work_{link.work(), 0}, link_(link) {}

  // The memory that is used from now on, aligned to kAlignment. Where it is another than before, nothing may
  // be under way in that one, and the new one is used behind `caller` (who may have used it before).
  Status place(std::span<std::byte> memory, const Mark& caller);
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  // Behind it nothing that was queued so far uses the memory, or states in host memory.
  [[nodiscard]] Mark idle() const { return marks_.empty() ? Mark() : marks_.back().mark; }

  // --- What a step does ---

  // Copies of scalars in device memory (lr, loss_scale, found_inf, norm), made in the order of the caller's
  // stream: the caller may change them behind the step, which reads them later. `step` and `report` stay.
  Result<StepScalars> keep(const StepScalars& scalars, void* stream);
  // The kept scalars are in use until `mark`.
  void kept_until(const Mark& mark) { scalar_marks_[scalar_place_] = mark; }
  // Eight bytes for the work queue alone.
  [[nodiscard]] std::int64_t* count() const {
    return reinterpret_cast<std::int64_t*>(memory_.data() + kScalarPlaces * kScalarBytes);
  }

  // A new batch, the one that so many have begun with, and a batch's end.
  std::uint64_t begin() { return ++batches_; }
  [[nodiscard]] std::uint64_t after(std::size_t batches) const { return batches_ + batches; }
  void end(std::uint64_t batch, const Mark& down) { marks_.push_back({batch, down}); }
  // `batch` uses these bytes from now on. For what is copied, of the device or of the host, `up` begins
  // behind the batches that used them before; for tables, which the work queue alone writes and reads, `work`
  // begins behind those that have copied there.
  enum class For { copies, tables };
  Status claim(std::span<const std::byte> bytes, std::uint64_t batch, For what);

  std::uint64_t tables_of = 0;  // a number of the step whose tables are there
  // Where the next step that has no place yet may begin, in bytes behind the head.
  std::int64_t cursor = 0;

 private:
  struct Waiter {
    Queue& queue;
    std::uint64_t waited;  // for this batch and all before it
  };
  struct Use {
    std::uintptr_t end;
    std::uint64_t batch;
    For what;
  };
  struct Over {
    std::uint64_t batch;
    Mark mark;
  };
  Status wait(Waiter& waiter, std::uint64_t batch);

  Waiter up_, work_;
  Link& link_;
  std::span<std::byte> memory_;
  std::uint64_t batches_ = 0;
  std::map<std::uintptr_t, Use> uses_;  // by begin; apart from each other
  std::deque<Over> marks_;              // of batches that somebody may still wait for
  std::size_t scalar_place_ = 0;
  std::array<Mark, kScalarPlaces> scalar_marks_;
};

}  // namespace octavo::offload
