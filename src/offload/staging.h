// The device memory that states pass through, of one engine and one device. It records which batch uses which
// bytes, so that a step waits only for earlier uses of the bytes that it needs.
//
// A batch is copied up, updated and copied down. Batches are numbered in the order in which they are posted.
// A batch ends with the fence after its copies down. The queue `down` is in order, so the fence of a batch
// implies those of all earlier batches.
// Threads: used by the thread that uses the engine.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"
#include "offload/queue.h"

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
  // The head of the memory has slots for copies of scalars, and one step count. So up to kScalarSlots
  // gradients can be released while their steps are queued; after that the caller's stream waits for a slot.
  static constexpr std::int64_t kScalarSlots = 255, kScalarSlotBytes = 64;
  static constexpr std::int64_t kHeadBytes = (kScalarSlots + 1) * kScalarSlotBytes;
  // Limit of enqueued batches. A batch is up to half a dozen entries of a queue, which holds about 1,000.
  static constexpr std::size_t kMaxEnqueued = 128;

  explicit Staging(DeviceQueues& queues) : up_{queues.up(), 0}, work_{queues.work(), 0}, queues_(queues) {}
  [[nodiscard]] DeviceQueues& queues() { return queues_; }

  // Sets the memory, which is aligned to kAlignment. If it differs from the earlier memory, nothing may be
  // using the earlier one, and the new one is used after `caller`.
  Status set_memory(std::span<std::byte> memory, const Fence& caller);
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  // Enqueues all posted batches. After the fence none of them uses the memory or states in host memory.
  Result<Fence> idle_fence();

  // --- Called by steps ---

  // Copies lr, loss_scale, found_inf and norm to the next slot, in the order of the caller's stream, and
  // returns scalars that point to the copies. The caller may overwrite its scalars before the step reads
  // them.
  Result<StepScalars> copy_scalars(const StepScalars& scalars, void* stream);
  // The slot of the last copies. It is in use until `fence`, which `batch` sets when it is enqueued.
  [[nodiscard]] std::size_t scalar_slot() const { return scalar_slot_; }
  void hold_scalars_until(std::size_t slot, const Fence& fence) { scalar_fences_[slot] = fence; }
  void hold_scalars_for_batch(std::size_t slot, std::uint64_t batch) { scalar_batches_[slot] = batch; }
  // A step count that only the work queue uses.
  [[nodiscard]] std::int64_t* count() const {
    return reinterpret_cast<std::int64_t*>(memory_.data() + kScalarSlots * kScalarSlotBytes);
  }

  // Device queues are bounded, and enqueueing past the limit blocks. So batches are posted here and enqueued
  // in order by pump() while there is space, or by flush(), which waits for space. post_batch() returns the
  // number of the new batch; `queue` enqueues it.
  std::uint64_t post_batch(std::function<Status(std::uint64_t batch)> queue);
  [[nodiscard]] std::uint64_t posted() const { return batches_; }
  [[nodiscard]] bool is_queued(std::uint64_t batch) const { return batch + waiting_.size() <= batches_; }
  Status pump();
  Status flush(std::uint64_t batch);
  // Returns a fence that passes when the batch is enqueued. Waiting for it flushes.
  [[nodiscard]] Fence queued_fence(std::uint64_t batch);
  // Records the end of a batch.
  void end_batch(std::uint64_t batch, const Fence& down);
  // Records that `batch` uses these bytes from now on. Before copies, in device or host memory, `up` waits
  // for the batches that used the bytes. Before tables, which only the work queue writes and reads, `work`
  // waits for the batches that have copied there.
  enum class For { copies, tables };
  Status claim_bytes(std::span<const std::byte> bytes, std::uint64_t batch, For what);

  std::uint64_t tables_of = 0;  // number of the step whose tables are in the memory
  // The next step without a location begins here, in bytes after the head.
  std::int64_t cursor = 0;

 private:
  struct QueueProgress {
    Queue& queue;
    std::uint64_t waited;  // the queue waits for this batch and all earlier ones
  };
  struct Use {
    std::uintptr_t end;
    std::uint64_t batch;
    For what;
  };
  struct BatchEnd {
    std::uint64_t batch;
    Fence fence;
  };
  Status wait_for_batch(QueueProgress& progress, std::uint64_t batch);
  Status enqueue_next();
  Status fail(Status status);

  QueueProgress up_, work_;
  DeviceQueues& queues_;
  std::span<std::byte> memory_;
  std::uint64_t batches_ = 0;
  std::map<std::uintptr_t, Use> uses_;  // by first byte; disjoint
  std::deque<BatchEnd> ends_;           // of batches that a queue may still wait for
  std::size_t scalar_slot_ = 0;
  std::array<Fence, kScalarSlots> scalar_fences_;
  std::array<std::uint64_t, kScalarSlots> scalar_batches_{};
  std::deque<std::function<Status(std::uint64_t)>> waiting_;  // posted and not enqueued
  Status failed_;
  std::deque<Fence> enqueued_;  // ends of enqueued batches, at most kMaxEnqueued
};

}  // namespace octavo::offload
