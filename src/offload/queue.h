// Queues of work that run beside the caller, in order, and fences that order one behind another. A GPU's
// queues are streams; the CPU's are threads of their own, so everything that offload does on a GPU happens on
// a CPU, too, at times that nobody knows: what tests rely on.
//
// Errors: work that fails is remembered by its queue, which does nothing from then on; fences behind it pass,
// and their wait returns the error, as does every later call on the queue, and on one that waits for such a
// fence.
// Threads: every function here may be called by any thread.
// Fork: in a child of the process that made them queues do nothing: calls are an error, destructors return.
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

// A point in the order of a queue: passed when everything before it is done. A value; an empty one has
// passed.
class Fence {
 public:
  class State {
   public:
    virtual ~State() = default;
    [[nodiscard]] virtual bool passed() const = 0;
    virtual Status wait() const = 0;  // the host waits
  };
  Fence() = default;
  explicit Fence(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  [[nodiscard]] bool passed() const { return state_ == nullptr || state_->passed(); }
  [[nodiscard]] Status wait() const { return state_ == nullptr ? Status() : state_->wait(); }
  [[nodiscard]] const State* state() const { return state_.get(); }

 private:
  std::shared_ptr<const State> state_;
};

class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;  // waits for what is queued

  // Between any memories; both stay valid until it is done. `label` is a constant: what a trace calls it.
  virtual Status copy(void* to, const void* from, std::int64_t bytes, const char* label) = 0;
  // `work` gets the queue's stream (null: a thread's). On a stream it is called now and queues kernels; on a
  // thread it runs in order, later.
  virtual Status run(std::function<Status(void* stream)> work, const char* label) = 0;
  // Of a queue that has failed: the host waits until nothing of it is under way, so that what it uses may be
  // freed.
  virtual void synchronize() {}
  virtual Result<Fence> record_fence() = 0;
  // What is queued from now on begins when `fence`, of any queue, has passed. A stream cannot wait for a
  // thread: where a stream's queue is ordered behind a thread's fence, the caller waits for it. Avoid that by
  // calling it from the thread's own work.
  virtual Status order_after(const Fence& fence) = 0;
};

// The queues of one device, and the caller's streams beside them.
class DeviceQueues {
 public:
  DeviceQueues() = default;
  DeviceQueues(const DeviceQueues&) = delete;
  DeviceQueues& operator=(const DeviceQueues&) = delete;
  virtual ~DeviceQueues() = default;

  [[nodiscard]] virtual Queue& up() = 0;    // copies from host memory to the device
  [[nodiscard]] virtual Queue& work() = 0;  // the device's own work
  [[nodiscard]] virtual Queue& down() = 0;  // copies from the device to host memory
  [[nodiscard]] virtual Queue& host() = 0;  // the CPU's work: always a thread

  // What the caller has queued on `stream` so far. On the CPU: nothing, it was done on return.
  virtual Result<Fence> record_fence(void* stream) = 0;
  // What the caller queues on `stream` from now on begins behind the fence. On the CPU: waits for it.
  virtual Status order(void* stream, const Fence& fence) = 0;
  // A few words within the device's memory, in the order of `stream`: the caller's, or that of a queue's run.
  // On the CPU: done on return. On a GPU by a kernel: copies wait for those of large pieces.
  struct CopyRange {
    void* to = nullptr;
    const void* from = nullptr;
    std::int64_t bytes = 0;  // whole fours, at most kMaxRangeBytes
  };
  static constexpr std::size_t kMaxRanges = 4;
  static constexpr std::int64_t kMaxRangeBytes = 32;
  // REQUIRES: at most kMaxRanges of them.
  virtual Status copy(void* stream, std::span<const CopyRange> list) = 0;
  // Whether one copy may reach from `from` to `to`, in host memory: a GPU copies within one allocation.
  [[nodiscard]] virtual bool in_one_allocation(const void* from, const void* to) = 0;
};

// Threads stand for the device. OCTAVO_OFFLOAD_DELAYS="SEED:MICROSECONDS" in the environment makes every
// queue sleep for a random while before everything that it does (for tests).
std::unique_ptr<DeviceQueues> make_cpu_queues();
// An error where the device cannot be used.
Result<std::unique_ptr<DeviceQueues>> make_cuda_queues(const std::string& where, int device);

}  // namespace octavo::offload
