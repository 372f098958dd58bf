// Memory: what the allocator reports, how much each owner holds, and the message when there is none left.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace octavo::train {

struct DeviceMemory {
  std::int64_t allocated = 0, peak = 0, reserved = 0;  // of torch's allocator
  std::int64_t free = 0, total = 0;                    // of the device; 0: unknown
};

// All zero on the CPU, whose allocator keeps no count.
DeviceMemory device_memory(const torch::Device& device);
void reset_peak(const torch::Device& device);
// Gives what torch's allocator holds for nobody back to the device.
void release_cached_memory(const torch::Device& device);

// Bytes of this process in RAM now; 0 where the system does not say.
std::int64_t host_memory();

// Memory by owner at the peak of a step. The sum is `peak`.
struct MemoryByOwner {
  std::int64_t params = 0, grads = 0, states = 0, master = 0, workspace = 0;
  std::int64_t activations = 0;    // and everything else that the passes hold
  std::int64_t communication = 0;  // of ranks, beside what they communicate
  std::int64_t fp8 = 0;            // codes of weights, and states of scales
  // In host memory, no part of the peak; copies: of weights and gradients.
  std::int64_t host_states = 0, host_master = 0, host_copies = 0;
  [[nodiscard]] std::int64_t peak() const {
    return params + grads + states + master + workspace + communication + fp8 + activations;
  }
  [[nodiscard]] std::int64_t host() const { return host_states + host_master + host_copies; }
};

// Measures the most that is allocated beyond `held` while it lives: by the allocator's peak, or on the CPU by
// counting allocations of this thread and of the passes that it starts. One at a time: on the CPU torch's
// warnings are off meanwhile.
class PeakMeter {
 public:
  explicit PeakMeter(const torch::Device& device);
  ~PeakMeter();
  PeakMeter(const PeakMeter&) = delete;
  PeakMeter& operator=(const PeakMeter&) = delete;

  // Beyond what was allocated when it began: the most since then or since restart(), and now.
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

// The run's part of the message below.
struct TaskMemory {
  std::string batch;               // what a pass held: "8 sequences of 512 bytes"
  std::vector<std::string> helps;  // settings that would help, as `key=value (why)`
};

// The message for a full device: what each owner holds, how much is fragmentation, what a pass held, and
// which settings would help.
std::string explain_out_of_memory(const std::string& what, const MemoryByOwner& owners,
                                  const DeviceMemory& device, const TaskMemory& task);

// A line per owner, aligned, with its share of the peak; and one of what is in host memory, if anything is.
std::vector<std::string> memory_table(const MemoryByOwner& owners);

}  // namespace octavo::train
