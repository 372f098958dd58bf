// A queue whose work runs on a stream of a GPU.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/offload/events.h"
#include "offload/test_delays.h"
#include "offload/trace.h"

namespace octavo::cuda {

class StreamQueue final : public offload::Queue, private offload::TraceSource {
 public:
  // `priority` is that of cudaStreamCreateWithPriority.
  static Result<std::unique_ptr<StreamQueue>> make(std::string row, std::shared_ptr<EventPool> events,
                                                   int priority, offload::Delays delays);
  ~StreamQueue() override;

  Status copy(void* to, const void* from, std::int64_t bytes, const char* label) override;
  Status run(std::function<Status(void* stream)> work, const char* label) override;
  Result<offload::Fence> record_fence() override;
  void synchronize() override;
  Status order_after(const offload::Fence& fence) override;

 private:
  struct Timed {
    const char* label;
    cudaEvent_t begin, end;
  };

  StreamQueue(std::string row, std::shared_ptr<EventPool> events, cudaStream_t stream,
              offload::Delays delays);
  void collect() override;
  // Returns an error in a forked process, and after the queue has failed.
  Status usable();
  Status record_error(Status status);
  // Enqueues a delay (for tests), the work, and the events of a trace.
  template <class What>
  Status queue(const char* label, What&& what);
  Result<cudaEvent_t> begin_timed();

  const std::string row_;
  const std::shared_ptr<EventPool> events_;
  const cudaStream_t stream_;
  std::mutex mutex_;
  Status error_{};
  offload::Delays delays_;
  // The trace: its first event, the host's time of that event, and the later events.
  cudaEvent_t base_ = nullptr;
  double base_clock_ = 0.0;
  std::vector<Timed> timed_;
};

}  // namespace octavo::cuda
