// The memory, CPUs and threads that the machine and the process's container allow. All control groups of
// versions 1 and 2 above the process count; the tightest limit is used.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>

namespace octavo::offload {

// `root` is the root of the file system; tests pass another one. Without a limit this is the largest number.
std::int64_t available_memory(const std::filesystem::path& root);
// The number of CPUs whose time the process may use (a quota, not a list of CPUs), rounded down, at least 1.
int cpu_quota(const std::filesystem::path& root);

// The number of threads of the CPU's part of an offloaded step: `requested`, or if it is 0 the pool's threads
// without one CPU for the framework's own thread, and within the container's quota. Beyond the quota all
// threads would be stopped, the framework's too.
int host_threads(int requested = 0);
// The rule of host_threads for a pool of `pool` threads and a process that may use `cpus` CPUs.
int host_threads_of(int pool, int cpus);

}  // namespace octavo::offload
