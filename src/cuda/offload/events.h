// Events of one device, used again and again, and fences made of them.
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

// Events tell no time unless a trace asks for that.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  enum class Kind { order, time };

  explicit EventPool(int device);
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  Result<cudaEvent_t> acquire(Kind kind);
  // An event may be given back when nobody will ask for it: who waits for it in a stream has its own copy.
  void release(Kind kind, cudaEvent_t event);
  // What `stream` has been given so far.
  Result<offload::Fence> record_fence(const std::string& where, cudaStream_t stream,
                                      const void* queue = nullptr);

  [[nodiscard]] int device() const { return device_; }
  // False in a forked process, where nothing of CUDA may be called.
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

  [[nodiscard]] bool passed() const override;  // an error has passed, too: wait says it
  Status wait() const override;

  [[nodiscard]] cudaEvent_t event() const { return event_; }
  // The queue that it is a fence of; null: a stream of the caller.
  [[nodiscard]] const void* queue() const { return queue_; }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
  const void* queue_;
  mutable std::atomic<bool> passed_{false};  // asked once more, the driver need not be
};

}  // namespace octavo::cuda
