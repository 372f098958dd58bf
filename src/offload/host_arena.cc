// SPDX-License-Identifier: MIT
#include "offload/host_arena.h"

#include <octavo/offload.h>

#include <algorithm>

namespace octavo::offload {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kBlock = std::int64_t{64} << 20;  // the usual size

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Result<HostBuffer> HostArena::allocate(std::int64_t bytes, std::int64_t expected, bool pin) {
  const std::int64_t wanted = aligned(std::max<std::int64_t>(bytes, 1));
  const bool fits = open_.bytes >= wanted && open_pinned_ == pin;
  // A large buffer has its own block, so that no other block stays half empty.
  if (!fits && wanted > kBlock / 8) return allocate_block(wanted, pin);
  if (!fits) {
    auto made = allocate_block(std::max(wanted, std::min(kBlock, aligned(expected))), pin);
    if (!made.ok()) return made.status();
    open_ = std::move(*made);
    open_pinned_ = pin;
  }
  HostBuffer buffer{open_.data, bytes};
  open_.data = std::shared_ptr<std::byte>(open_.data, open_.get() + wanted);
  open_.bytes -= wanted;
  if (open_.bytes < kAlignment) open_ = {};
  return buffer;
}

Result<HostBuffer> HostArena::allocate_block(std::int64_t bytes, bool pin) const {
  HostBuffer buffer;
  buffer.bytes = bytes;
  if (allocator_.allocate == nullptr) {
    auto made = HostMemory::allocate(bytes, pin);
    if (!made.ok()) return made.status();
    auto owner = std::make_shared<HostMemory>(std::move(*made));
    buffer.data = std::shared_ptr<std::byte>(owner->data(),
                                             [owner, total = total_, bytes](std::byte*) { *total -= bytes; });
  } else {
    auto* data = static_cast<std::byte*>(allocator_.allocate(allocator_.user, bytes));
    if (data == nullptr) {
      return Status::failed("[engine] host memory: the caller's allocator has no " + std::to_string(bytes) +
                            " bytes; keep more states on the device, or take a smaller format");
    }
    buffer.data =
        std::shared_ptr<std::byte>(data, [allocator = allocator_, total = total_, bytes](std::byte* gone) {
          *total -= bytes;
          allocator.release(allocator.user, gone);
        });
  }
  *total_ += bytes;
  return buffer;
}

}  // namespace octavo::offload
