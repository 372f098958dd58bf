// What offload needs besides the engine: which tensors' states leave the device, host memory that devices
// copy at full speed, and a trace of what overlaps.
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

// Tensors of fewer elements keep their state on the device: moving them costs more than it saves.
inline constexpr std::int64_t kMinOffloadedSize = 4096;

struct ResidenceOptions {
  Residence wanted = Residence::device;  // of the tensors that leave the device
  std::int64_t min_size = kMinOffloadedSize;
  double ratio = 1.0;        // of all bytes of states that leave the device, as far as tensors allow
  std::int64_t budget = -1;  // bytes of states that may stay on the device, small tensors besides; -1: the
                             // ratio decides. Both at once are an error.
};

struct ResidenceTensor {
  std::int64_t numel = 0;
  std::int64_t state_bytes = 0;  // TensorLayout::state_bytes and residual_bytes
};

// The one rule of all adapters. The first tensors (the next forward pass needs them first) stay while they
// fit.
OCTAVO_API Result<std::vector<Residence>> choose_residences(std::span<const ResidenceTensor> tensors,
                                                            const ResidenceOptions& options);

// Host memory of exactly the size asked for (in whole pages), zeroed, aligned to 4096. Pinned for every GPU
// of the process where that is possible; where it is not, it is pageable and `why_not` says why. Pinned
// memory is not there in forked processes: a copy of it would be made for each of them.
class OCTAVO_API HostMemory {
 public:
  // `pin` false: plain memory. An error where there is none: it says how much was asked for and how much
  // there is.
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
  std::int64_t process_ = 0;  // which one it belongs to: a forked one lets go without touching anything
  std::string why_not_;
};

// Bytes of host memory that this process may still take: the machine's, and its container's where that is
// less.
OCTAVO_API std::int64_t host_room();

// From now on copies, CPU work and kernels of offloaded steps are noted (false: no longer).
OCTAVO_API void trace_offload(bool on);
// Adds a stretch of the caller's own while a trace is on, such as a layer's forward pass: the row that it is
// shown in, its name, and its ends in microseconds of std::chrono::steady_clock.
OCTAVO_API void note_offload(const std::string& row, const std::string& label, double begin, double end);
// Writes what was noted as Chrome trace JSON and forgets it. Waits for the devices.
OCTAVO_API Status write_offload_trace(const std::string& path);

}  // namespace octavo
