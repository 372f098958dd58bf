// SPDX-License-Identifier: MIT
#include "offload/host_limits.h"

#include "cpu/threads.h"

#include <octavo/offload.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::offload {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

// Returns the first number of a file, or none if the file is missing or contains "max".
std::optional<std::int64_t> number(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Returns the number after a key, in a file of lines "key number".
std::optional<std::int64_t> number(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::int64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

// Returns the folders of the process's group and of the groups above it, up to `mount`. In a container the
// group may be the mount itself, so that the other folders do not exist; missing folders have no limits.
std::vector<fs::path> groups(const fs::path& mount, std::string_view path) {
  std::vector<fs::path> all = {mount};
  for (const fs::path& part : fs::path(path).relative_path()) {
    if (!part.empty() && part != "." && part != "..") all.push_back(all.back() / part);
  }
  return all;
}

// The file has lines "id:controllers:path"; lines of version 2 have no controllers.
struct Groups {
  std::vector<fs::path> unified;  // version 2
  std::vector<fs::path> own;      // version 1, one controller
};
Groups find_groups(const fs::path& root, std::string_view controller) {
  const fs::path mount = root / "sys/fs/cgroup";
  Groups found;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view path = std::string_view(line).substr(second + 1);
    std::istringstream names(line.substr(first + 1, second - first - 1));
    if (second == first + 1) found.unified = groups(mount, path);
    for (std::string one; std::getline(names, one, ',');) {
      if (one == controller) found.own = groups(mount / one, path);
    }
  }
  return found;
}

// The page cache counts as used memory, although inactive files can be dropped.
void apply_memory_limit(std::int64_t& room, std::optional<std::int64_t> limit,
                        std::optional<std::int64_t> used, std::optional<std::int64_t> files) {
  if (!limit || !used || *limit < 0) return;
  const std::int64_t taken = std::max<std::int64_t>(0, *used - files.value_or(0));
  room = std::min(room, std::max<std::int64_t>(0, *limit - taken));
}

void apply_cpu_limit(double& cpus, std::optional<std::int64_t> quota, std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  cpus = std::min(cpus, static_cast<double>(*quota) / static_cast<double>(*period));
}

}  // namespace

std::int64_t available_memory(const fs::path& root) {
  std::int64_t room = kNone;
  if (const auto free = number(root / "proc/meminfo", "MemAvailable:"); free && *free < kNone / 1024)
    room = 1024 * *free;
  const Groups found = find_groups(root, "memory");
  for (const fs::path& group : found.unified) {
    const auto used = number(group / "memory.current");
    const auto files = number(group / "memory.stat", "inactive_file");
    apply_memory_limit(room, number(group / "memory.max"), used, files);
    apply_memory_limit(room, number(group / "memory.high"), used,
                       files);  // the kernel slows the process above it
  }
  for (const fs::path& group : found.own) {
    apply_memory_limit(room, number(group / "memory.limit_in_bytes"), number(group / "memory.usage_in_bytes"),
                       number(group / "memory.stat", "total_inactive_file"));
  }
  return room;
}

int cpu_quota(const fs::path& root) {
  double cpus = std::numeric_limits<int>::max();
  const Groups found = find_groups(root, "cpu");
  for (const fs::path& group : found.unified) {
    std::ifstream file(group / "cpu.max");  // "max 100000", or "200000 100000"
    std::int64_t quota = 0;
    std::int64_t period = 0;
    if (file >> quota >> period) apply_cpu_limit(cpus, quota, period);
  }
  for (const fs::path& group : found.own)
    apply_cpu_limit(cpus, number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us"));
  return std::max(1, static_cast<int>(cpus));
}

int host_threads_of(int pool, int cpus) { return std::min(pool, std::max(1, cpus - 1)); }

int host_threads(int requested) {
  if (requested > 0) return requested;
  static const int quota = cpu_quota("/");  // read once, because reading files at every step is slow
  return host_threads_of(cpu::default_pool_threads(), std::min(cpu::available_cpus(), quota));
}

}  // namespace octavo::offload

std::int64_t octavo::host_room() { return offload::available_memory("/"); }
