// Memory and threads for benchmarks; see memory.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/memory.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace octavo::cli {
namespace {

constexpr std::align_val_t kPage{4096};

// Returns the number that a one-line file holds, or `otherwise` (no such file, or "max").
std::int64_t number_in(const char* path, std::int64_t otherwise) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : otherwise;
}

}  // namespace

PageBuffer::PageBuffer(std::int64_t bytes) : size_(bytes) {
  if (bytes > 0) data_.reset(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), kPage)));
}

void PageBuffer::Free::operator()(std::byte* bytes) const { ::operator delete(bytes, kPage); }

void for_slices(int threads, std::int64_t count, std::int64_t grain,
                const std::function<void(std::int64_t begin, std::int64_t end)>& work) {
  const std::int64_t grains = (count + grain - 1) / grain;
  const auto edge = [&](std::int64_t slice) {
    const std::int64_t before = grains / threads * slice + std::min<std::int64_t>(slice, grains % threads);
    return std::min(count, before * grain);
  };
  std::vector<std::jthread> team;
  for (int i = 1; i < threads; ++i)
    if (edge(i) < edge(i + 1)) team.emplace_back([&, i] { work(edge(i), edge(i + 1)); });
  if (edge(0) < edge(1)) work(edge(0), edge(1));
}

void touch(const PageBuffer& buffer, int threads) {
  for_slices(threads, buffer.size(), static_cast<std::int64_t>(kPage),
             [&](std::int64_t begin, std::int64_t end) {
               std::memset(buffer.data() + begin, 0, static_cast<std::size_t>(end - begin));
             });
}

std::int64_t available_memory() {
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    if (key != "MemAvailable:") continue;
    std::int64_t kibibytes = 0;
    if (meminfo >> kibibytes) available = kibibytes * 1024;
    break;
  }
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max", -1);
  if (limit >= 0)
    available =
        std::min(available, std::max<std::int64_t>(0, limit - number_in("/sys/fs/cgroup/memory.current", 0)));
  return available;
}

}  // namespace octavo::cli
