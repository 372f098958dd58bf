// The engine's host memory. Buffers are parts of large blocks, because an allocation may pin pages, which is
// slow. A block is freed when its last buffer is freed.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace octavo::offload {

// The source of host memory; the default is the memory of octavo/offload.h. `allocate` returns memory aligned
// to 64, or null if there is none. It is called from the thread that uses the engine.
struct HostAllocator {
  void* (*allocate)(void* user, std::int64_t bytes) = nullptr;
  void (*release)(void* user, void* data) = nullptr;
  void* user = nullptr;
};

struct HostBuffer {
  std::shared_ptr<std::byte> data;
  std::int64_t bytes = 0;

  [[nodiscard]] std::byte* get() const { return data.get(); }
};

class HostArena {
 public:
  // Returns true if a buffer exists.
  [[nodiscard]] bool used() const { return *total_ > 0; }
  [[nodiscard]] std::int64_t bytes() const { return *total_; }
  void set_allocator(HostAllocator allocator) { allocator_ = allocator; }

  // Returns a buffer that is aligned to 256 bytes, and pinned if `pin` is set and the memory is the engine's
  // own. `expected`: bytes of this buffer and of those that will be allocated soon; they share a block.
  Result<HostBuffer> allocate(std::int64_t bytes, std::int64_t expected, bool pin);

 private:
  Result<HostBuffer> allocate_block(std::int64_t bytes, bool pin) const;

  HostAllocator allocator_{};
  HostBuffer open_;  // the unused rest of the last block
  bool open_pinned_ = false;
  std::shared_ptr<std::int64_t> total_ = std::make_shared<std::int64_t>(0);
};

}  // namespace octavo::offload
