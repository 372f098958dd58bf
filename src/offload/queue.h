// Queues of asynchronous work, and fences that order them. A GPU's queues are streams. On the CPU they are
// threads that emulate a device, so tests run all of offload without a GPU, at random times.
//
// Errors: a queue keeps the first error of its work and does nothing afterwards. Fences after the error pass,
// and waiting for them returns the error. So does every later call on the queue, and on a queue that waits
// for such a fence.
// Threads: any thread may call every function of this file.
// Fork: in a child of the process that made the queues, calls return an error and destructors do nothing.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>
#include <octavo/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace octavo::offload {

// A point in a queue's order. The fence passes when all work before it is done. An empty fence has passed.
class Fence {
 public:
  class State {
   public:
    virtual ~State() = default;
    [[nodiscard]] virtual bool passed() const = 0;
    virtual Status wait() const = 0;  // blocks the host
  };
  Fence() = default;
  explicit Fence(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  [[nodiscard]] bool passed() const { return state_ == nullptr || state_->passed(); }
  [[nodiscard]] Status wait() const { return state_ == nullptr ? Status() : state_->wait(); }
  [[nodiscard]] const State* state() const { return state_.get(); }

 private:
  std::shared_ptr<const State> state_;
};

// A fence of work that may not be on its queue yet. `fence` (null: there is no such work) has its value once
// `queued` has passed.
struct PendingFence {
  Fence queued;
  std::shared_ptr<Fence> fence;

  [[nodiscard]] bool empty() const { return fence == nullptr && queued.state() == nullptr; }
  [[nodiscard]] Status wait() const {
    if (Status bad = queued.wait(); !bad.ok()) return bad;
    return fence == nullptr ? Status() : fence->wait();
  }
};

class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;  // waits for all queued work

  // Copies between any two memories, which stay valid until the copy is done. `label` is a string constant,
  // the name of the copy in a trace.
  virtual Status copy(void* to, const void* from, std::int64_t bytes, const char* label) = 0;
  // Passes the queue's stream to `work`. A stream's queue calls `work` immediately, and `work` launches
  // kernels. A thread's queue calls it later, in order, with null.
  virtual Status run(std::function<Status(void* stream)> work, const char* label) = 0;
  // For a queue that has failed: blocks until none of its work is running, so that its memory may be freed.
  virtual void synchronize() {}
  virtual Result<Fence> record_fence() = 0;
  // Work that is queued from now on begins after `fence`, which may be of any queue. A stream cannot wait for
  // a thread: if this queue is a stream and the fence a thread's, the caller blocks. Call it from the
  // thread's own work instead.
  virtual Status order_after(const Fence& fence) = 0;
};

// Copies a few words within device memory.
struct CopyRange {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;  // a multiple of 4, at most kMaxRangeBytes
};

// The queues of one device.
class DeviceQueues {
 public:
  DeviceQueues() = default;
  DeviceQueues(const DeviceQueues&) = delete;
  DeviceQueues& operator=(const DeviceQueues&) = delete;
  virtual ~DeviceQueues() = default;

  [[nodiscard]] virtual Queue& up() = 0;    // copies from host memory to the device
  [[nodiscard]] virtual Queue& work() = 0;  // the device's kernels
  [[nodiscard]] virtual Queue& down() = 0;  // copies from the device to host memory
  [[nodiscard]] virtual Queue& host() = 0;  // the CPU's work; always a thread

  // A fence after the caller's work on `stream`. On the CPU that work is already done.
  virtual Result<Fence> record_fence(void* stream) = 0;
  // The caller's later work on `stream` begins after the fence. On the CPU this blocks until it has passed.
  virtual Status order_stream_after(void* stream, const Fence& fence) = 0;
  static constexpr std::size_t kMaxRanges = 4;
  static constexpr std::int64_t kMaxRangeBytes = 32;
  // Copies at most kMaxRanges ranges in the order of `stream`, which is the caller's or that of Queue::run.
  // On a GPU a kernel copies them, because the copy engines may be busy with large copies.
  virtual Status copy(void* stream, std::span<const CopyRange> ranges) = 0;
  // Returns true if one copy may read from `from` up to `to` in host memory. A GPU's copy must stay within
  // one allocation.
  [[nodiscard]] virtual bool in_one_allocation(const void* from, const void* to) = 0;
};

// Threads that emulate a device. OCTAVO_OFFLOAD_DELAYS="SEED:MICROSECONDS" in the environment makes every
// queue sleep for a random time before each task (for tests).
std::unique_ptr<DeviceQueues> make_cpu_queues();
// Returns an error if the device cannot be used.
Result<std::unique_ptr<DeviceQueues>> make_cuda_queues(const std::string& where, int device);

// These skip the driver's call for a fence that has passed.
inline Status order_after(Queue& queue, const Fence& fence) {
  return fence.passed() ? fence.wait() : queue.order_after(fence);
}
inline Status order_after(Queue& queue, const PendingFence& pending) {
  if (pending.fence == nullptr) return order_after(queue, pending.queued);
  if (Status bad = pending.queued.wait(); !bad.ok()) return bad;
  return order_after(queue, *pending.fence);
}
// Does not query the fence first: a query takes the driver longer than the order.
inline Status order_stream_after(DeviceQueues& queues, void* stream, const PendingFence& pending) {
  if (Status bad = pending.queued.wait(); !bad.ok()) return bad;
  return pending.fence == nullptr ? Status() : queues.order_stream_after(stream, *pending.fence);
}
inline Result<Fence> record_fence_unless(const Status& bad, Queue& queue) {
  return bad.ok() ? queue.record_fence() : Result<Fence>(bad);
}

// The first error of queued work. The states of tensors are unknown after it, so every later call returns it.
class QueueErrors {
 public:
  Status record(Status status) {
    if (first_.ok() && !status.ok()) first_ = status;
    return status;
  }
  [[nodiscard]] const Status& first() const { return first_; }

 private:
  Status first_;
};

}  // namespace octavo::offload
