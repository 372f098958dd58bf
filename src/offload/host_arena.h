// The engine's own host memory: pieces of blocks, so that an allocation (which may pin pages, and then takes
// its time) serves many tensors. A block is given back when its last buffer is gone.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/engine.h>
#include <octavo/status.h>

#include <cstddef>
#include <memory>

namespace octavo::offload {

struct HostBuffer {
  std::shared_ptr<std::byte> data;
  std::int64_t bytes = 0;

  [[nodiscard]] std::byte* get() const { return data.get(); }
};

class HostArena {
 public:
  // Whether anything was allocated yet.
  [[nodiscard]] bool used() const { return *total_ > 0; }
  [[nodiscard]] std::int64_t bytes() const { return *total_; }
  void use(EngineHostMemory memory) { memory_ = memory; }

  // A buffer, aligned to 256 bytes, and pinned where `pin` asks for it and the memory is the engine's own.
  // `expected`: bytes of this and of pieces that will be asked for soon; they share a block.
  Result<HostBuffer> allocate(std::int64_t bytes, std::int64_t expected, bool pin);

 private:
  Result<HostBuffer> allocate_block(std::int64_t bytes, bool pin) const;

  EngineHostMemory memory_{};
  HostBuffer open_;  // what is left of the last block
  bool open_pinned_ = false;
  std::shared_ptr<std::int64_t> total_ = std::make_shared<std::int64_t>(0);
};

}  // namespace octavo::offload
