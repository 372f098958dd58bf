// Device memory that states pass through, of one engine and one device: who uses which bytes until when.
// Steps share it, and one begins while others are under way: each waits for the bytes that it needs and for
// no others.
//
// A batch is what one trip through the device moves. Batches are numbered as they are queued, and the fence
// behind a batch's copies down says that it is over. The queue `down` is in order, so the fence of a batch
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
#include <functional>
#include <map>
#include <span>

namespace octavo::offload {

class Staging {
 public:
  static constexpr std::int64_t kAlignment = 256;
  static constexpr std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // At the memory's begin: scalars that were kept, and a step count that is at hand. Who finds no place free
  // holds the caller's stream up: so many gradients may be released while their steps are under way.
  static constexpr std::int64_t kScalarSlots = 255, kScalarSlotBytes = 64;
  static constexpr std::int64_t kHeadBytes = (kScalarSlots + 1) * kScalarSlotBytes;
  // Batches on the queues: each is up to half a dozen entries of a queue, which has room for about 1,000.
  static constexpr std::size_t kMaxEnqueued = 128;

  explicit Staging(DeviceQueues& queues) : up_{queues.up(), 0}, work_{queues.work(), 0}, queues_(queues) {}
  [[nodiscard]] DeviceQueues& queues() { return queues_; }

  // The memory that is used from now on, aligned to kAlignment. Where it is another than before, nothing may
  // be under way in that one, and the new one is used behind `caller` (who may have used it before).
  Status set_memory(std::span<std::byte> memory, const Fence& caller);
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  // Queues all that was posted. Behind the fence nothing of it uses the memory, or states in host memory.
  Result<Fence> idle_fence();

  // --- What a step does ---

  // Copies of scalars in device memory (lr, loss_scale, found_inf, norm), made in the order of the caller's
  // stream: the caller may change them behind the step, which reads them later. `step` and `report` stay.
  Result<StepScalars> copy_scalars(const StepScalars& scalars, void* stream);
  // Where the last ones were kept; they are in use until `fence`, which `batch` (0: nobody) is to tell.
  [[nodiscard]] std::size_t scalar_slot() const { return scalar_slot_; }
  void hold_scalars_until(std::size_t place, const Fence& fence) { scalar_fences_[place] = fence; }
  void hold_scalars_for_batch(std::size_t place, std::uint64_t batch) { scalar_batches_[place] = batch; }
  // Eight bytes for the work queue alone.
  [[nodiscard]] std::int64_t* count() const {
    return reinterpret_cast<std::int64_t*>(memory_.data() + kScalarSlots * kScalarSlotBytes);
  }

  // A device's queues have so much room; who queues more is held up until it has done the first entries. So a
  // step posts its batches, and those are queued in their order while there is room (pump), or when somebody
  // needs one (flush), who then waits for room. A new batch; `queue` puts it on the queues.
  std::uint64_t post_batch(std::function<Status(std::uint64_t batch)> queue);
  [[nodiscard]] std::uint64_t posted() const { return batches_; }
  [[nodiscard]] bool is_queued(std::uint64_t batch) const { return batch + waiting_.size() <= batches_; }
  Status pump();
  Status flush(std::uint64_t batch);
  // Passed when the batch was queued. To wait for it is to flush: for the thread that uses the engine.
  [[nodiscard]] Fence queued_fence(std::uint64_t batch);
  // A batch's end.
  void end_batch(std::uint64_t batch, const Fence& down);
  // `batch` uses these bytes from now on. For what is copied, of the device or of the host, `up` begins
  // behind the batches that used them before; for tables, which the work queue alone writes and reads, `work`
  // begins behind those that have copied there.
  enum class For { copies, tables };
  Status claim_bytes(std::span<const std::byte> bytes, std::uint64_t batch, For what);

  std::uint64_t tables_of = 0;  // a number of the step whose tables are there
  // Where the next step that has no place yet may begin, in bytes behind the head.
  std::int64_t cursor = 0;

 private:
  struct QueueProgress {
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
    Fence fence;
  };
  Status wait(QueueProgress& waiter, std::uint64_t batch);
  Status enqueue_next();
  Status fail(Status status);

  QueueProgress up_, work_;
  DeviceQueues& queues_;
  std::span<std::byte> memory_;
  std::uint64_t batches_ = 0;
  std::map<std::uintptr_t, Use> uses_;  // by begin; apart from each other
  std::deque<Over> fences_;             // of batches that somebody may still wait for
  std::size_t scalar_slot_ = 0;
  std::array<Fence, kScalarSlots> scalar_fences_;
  std::array<std::uint64_t, kScalarSlots> scalar_batches_{};
  std::deque<std::function<Status(std::uint64_t)>> waiting_;  // batches that were posted and are not queued
  Status failed_;
  std::deque<Fence> under_way_;  // ends of those that were queued, at most kMaxEnqueued
};

}  // namespace octavo::offload
