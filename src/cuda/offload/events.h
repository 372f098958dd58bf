// A pool of reusable CUDA events of one device, and fences made of them.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/queue.h"

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace octavo::cuda {

// Only events of Kind::time have time stamps.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  enum class Kind { order, time };

  explicit EventPool(int device);
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  Result<cudaEvent_t> acquire(Kind kind);
  // Returns an event to the pool. A stream that waits for the event keeps its own copy of its state.
  void release(Kind kind, cudaEvent_t event);
  // Returns a fence after the current work of `stream`.
  Result<offload::Fence> record_fence(const std::string& where, cudaStream_t stream,
                                      const void* queue = nullptr);

  [[nodiscard]] int device() const { return device_; }
  // Returns false in a forked process, where no CUDA function may be called.
  [[nodiscard]] bool ours() const;

 private:
  const int device_;
  const pid_t owner_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_[2];
};

class EventFence final : public offload::Fence::State {
 public:
  EventFence(std::shared_ptr<EventPool> pool, cudaEvent_t event, const void* queue)
      : pool_(std::move(pool)), event_(event), queue_(queue) {}
  EventFence(const EventFence&) = delete;
  EventFence& operator=(const EventFence&) = delete;
  ~EventFence() override { pool_->release(EventPool::Kind::order, event_); }

  [[nodiscard]] bool passed() const override;  // also true after an error, which wait() returns
  Status wait() const override;

  [[nodiscard]] cudaEvent_t event() const { return event_; }
  // The fence's queue; null: a stream of the caller.
  [[nodiscard]] const void* queue() const { return queue_; }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
  const void* queue_;
  mutable std::atomic<bool> passed_{false};  // saves the query of the driver
};

}  // namespace octavo::cuda
