// Host memory in whole pages.
// SPDX-License-Identifier: MIT
#include <octavo/offload.h>

#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace octavo {

Result<HostMemory> HostMemory::allocate(std::int64_t bytes, bool /*pin*/) {
  HostMemory out;
  if (bytes <= 0) return out;
  void* data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Status::failed("[offload] host memory: " + std::to_string(bytes) + " bytes are needed and " +
                          std::to_string(host_room()) + " are free");
  }
  out.data_ = static_cast<std::byte*>(data);
  out.bytes_ = bytes;
  return out;
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      pinned_(std::exchange(other.pinned_, false)),
      why_not_(std::move(other.why_not_)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(pinned_, other.pinned_);
  std::swap(why_not_, other.why_not_);
  return *this;
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
}

}  // namespace octavo
