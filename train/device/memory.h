// Memory: what the allocator reports, how much each owner holds, and the error message when it runs out.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

struct DeviceMemory {
  std::int64_t allocated = 0, peak = 0, reserved = 0;  // by torch's allocator
  std::int64_t free = 0, total = 0;                    // of the device; 0: unknown
};

// Returns zeros on the CPU, whose allocator keeps no count.
DeviceMemory device_memory(const torch::Device& device);
void reset_peak(const torch::Device& device);
// Returns the unused memory in torch's caching allocator to the device.
void release_cached_memory(const torch::Device& device);

// Returns the bytes of this process in RAM; 0 if the system does not report them.
std::int64_t host_memory();

// Memory by owner at the peak of a step, in bytes. peak() is the sum of the parts on the device.
struct MemoryByOwner {
  std::int64_t params = 0, grads = 0, states = 0, master = 0, workspace = 0;
  std::int64_t activations = 0;    // and everything else that the micro-batches hold
  std::int64_t communication = 0;  // buffers of the ranks' communication
  std::int64_t fp8 = 0;            // codes of weights, and states of scales
  // Bytes in host memory, not part of the peak. host_copies: copies of weights and gradients.
  std::int64_t host_states = 0, host_master = 0, host_copies = 0;
  [[nodiscard]] std::int64_t peak() const {
    return params + grads + states + master + workspace + communication + fp8 + activations;
  }
  [[nodiscard]] std::int64_t host() const { return host_states + host_master + host_copies; }
};

// Measures the peak of the memory allocated beyond what was allocated at construction. It reads the
// allocator's peak, or on the CPU counts the allocations of this thread and of the forward and backward
// passes that it starts. Only one may exist at a time, because on the CPU torch's warnings are off meanwhile.
class PeakMeter {
 public:
  explicit PeakMeter(const torch::Device& device);
  ~PeakMeter();
  PeakMeter(const PeakMeter&) = delete;
  PeakMeter& operator=(const PeakMeter&) = delete;

  // Bytes beyond what was allocated at construction: bytes() is the peak since then or since restart(), now()
  // the current value.
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] std::int64_t now() const;
  void restart();

 private:
  class Counter;
  torch::Device device_;
  std::int64_t start_ = 0;
  int log_level_before_ = 0;
  std::shared_ptr<Counter> counter_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

// The run's part of the message of explain_out_of_memory().
struct TaskMemory {
  std::string batch;               // the micro-batch: "8 sequences of 512 bytes"
  std::vector<std::string> helps;  // settings that would help, as `key=value (why)`
};

// Returns the message for a full device: what each owner holds, how much is fragmentation, what a micro-batch
// held, and which settings would help.
std::string explain_out_of_memory(const std::string& what, const MemoryByOwner& owners,
                                  const DeviceMemory& device, const TaskMemory& task);

// Returns an aligned line per owner with its share of the peak, and a line for host memory if any is used.
std::vector<std::string> memory_table(const MemoryByOwner& owners);

}  // namespace octavo_train
