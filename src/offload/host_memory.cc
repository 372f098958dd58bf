// Host memory in complete pages: large pages if the system has them, first touched by all threads, then
// pinned.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"
#include "offload/pin.h"

#include <octavo/offload.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace octavo {
namespace {

constexpr std::int64_t kLargePage = std::int64_t{2} << 20;

std::string gigabytes(std::int64_t bytes) {
  const auto hundredths = bytes / 10'000'000;
  const auto rest = hundredths % 100;
  return std::to_string(hundredths / 100) + (rest < 10 ? ".0" : ".") + std::to_string(rest) + " GB";
}

// Maps pages; returns null if the system has none. Large pages begin at a multiple of their size, so the
// bytes before and after them are unmapped again.
void* map_pages(std::int64_t bytes) {
  const std::int64_t extra = bytes >= 2 * kLargePage ? kLargePage : 0;
  void* const mapped = mmap(nullptr, static_cast<std::size_t>(bytes + extra), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (extra == 0) return mapped;
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const auto before = (static_cast<std::uintptr_t>(kLargePage) - address) & (kLargePage - 1);
  auto* const data = static_cast<std::byte*>(mapped) + before;
  if (before > 0) munmap(mapped, before);
  if (const auto after = static_cast<std::size_t>(extra) - before; after > 0) munmap(data + bytes, after);
  (void)madvise(data, static_cast<std::size_t>(bytes),
                MADV_HUGEPAGE);  // a hint; some kernels have no large pages
  return data;
}

// A page that was never written does not exist yet. Pinning would create the pages on one thread.
void touch_pages(std::byte* data, std::int64_t bytes, std::int64_t page) {
  constexpr std::int64_t kTouchBytes = 16 * kLargePage;
  auto body = [&](std::int64_t i, cpu::Scratch&) {
    const std::int64_t end = std::min(bytes, (i + 1) * kTouchBytes);
    for (std::int64_t at = i * kTouchBytes; at < end; at += page)
      *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  };
  cpu::parallel_for((bytes + kTouchBytes - 1) / kTouchBytes, 0, body);
}

}  // namespace

Result<HostMemory> HostMemory::allocate(std::int64_t bytes, bool pin) {
  HostMemory out;
  if (bytes <= 0) return out;
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  const std::int64_t room = host_room();
  // Checked first: a system that overcommits kills the process when the pages are written.
  void* const data = bytes <= room ? map_pages((bytes + page - 1) / page * page) : nullptr;
  if (data == nullptr) {
    return Status::failed("[offload] host memory: " + std::to_string(bytes) + " bytes (" + gigabytes(bytes) +
                          ") are needed and " + std::to_string(room) + " (" + gigabytes(room) +
                          ") are free; a format of fewer bits needs less, and so does a smaller share of the "
                          "states in host memory");
  }
  out.data_ = static_cast<std::byte*>(data);
  out.bytes_ = bytes;
  out.process_ = getpid();
  if (!pin) return out;
  const std::int64_t whole = (bytes + page - 1) / page * page;
  touch_pages(out.data_, whole, page);
  const Status pinned = offload::pin_pages(data, whole);
  out.pinned_ = pinned.ok();
  if (out.pinned_) {
    // A forked process would immediately get a copy of every pinned page.
    (void)madvise(data, static_cast<std::size_t>(whole), MADV_DONTFORK);
  } else {
    out.why_not_ = "[offload] " + gigabytes(bytes) + " of host memory cannot be pinned: " + pinned.message() +
                   "; a GPU copies pageable memory several times slower, and blocks the host meanwhile";
  }
  return out;
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      pinned_(std::exchange(other.pinned_, false)),
      process_(other.process_),
      why_not_(std::move(other.why_not_)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(pinned_, other.pinned_);
  std::swap(process_, other.process_);
  std::swap(why_not_, other.why_not_);
  return *this;
}

HostMemory::~HostMemory() {
  if (data_ == nullptr || process_ != getpid()) return;
  if (pinned_) offload::unpin_pages(data_);
  munmap(data_, static_cast<std::size_t>(bytes_));
}

}  // namespace octavo
