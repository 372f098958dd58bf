// Offload without the engine: the choice of the tensors whose states leave the device, pinned host memory,
// and a trace that shows which copies and kernels overlap.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>
#include <octavo/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo {

// Smaller tensors keep their state on the device, because moving it costs more than it saves.
inline constexpr std::int64_t kMinOffloadedSize = 4096;

struct ResidenceOptions {
  Residence wanted = Residence::device;  // the residence of the tensors that leave the device
  std::int64_t min_size = kMinOffloadedSize;
  double ratio = 1.0;        // the fraction of all state bytes that leaves the device, rounded to tensors
  std::int64_t budget = -1;  // the state bytes that may stay on the device, without small tensors; -1: the
                             // ratio decides. Setting both is an error.
};

struct ResidenceTensor {
  std::int64_t numel = 0;
  std::int64_t state_bytes = 0;  // TensorLayout::state_bytes and residual_bytes
};

// Chooses the residence of each tensor; all adapters use this rule. The first tensors stay on the device
// while they fit, because the next forward pass needs them first.
OCTAVO_API Result<std::vector<Residence>> choose_residences(std::span<const ResidenceTensor> tensors,
                                                            const ResidenceOptions& options);

// Zeroed host memory of the requested size, rounded up to pages and aligned to 4096. It is pinned for every
// GPU of the process; if pinning fails it is pageable and `why_not` gives the reason. Pinned memory is not
// mapped in forked processes, because each of them would need a copy.
class OCTAVO_API HostMemory {
 public:
  // With `pin` false the memory is pageable. If memory is exhausted the error names the requested and the
  // available bytes.
  static Result<HostMemory> allocate(std::int64_t bytes, bool pin = true);
  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] bool pinned() const { return pinned_; }
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  bool pinned_ = false;
  std::int64_t process_ = 0;  // the owner: a forked process does not free the memory
  std::string why_not_;
};

// Returns the bytes of host memory that this process can still allocate: the smaller of the machine's and the
// container's limit.
OCTAVO_API std::int64_t host_room();

// Starts (true) or stops (false) recording the copies, CPU work and kernels of offloaded steps.
OCTAVO_API void trace_offload(bool on);
// Adds an event of the caller, such as a layer's forward pass, while a trace is on: its row, its name, and
// its begin and end in microseconds of std::chrono::steady_clock.
OCTAVO_API void note_offload(const std::string& row, const std::string& label, double begin, double end);
// Writes the recorded events as Chrome trace JSON and clears them. The call waits for the devices.
OCTAVO_API Status write_offload_trace(const std::string& path);

}  // namespace octavo
