// What the machine and the container around the process leave it: bytes and CPUs. Both kinds of control
// groups are looked at, each with all groups above it: the tightest one counts.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>

namespace octavo::offload {

// `root` is that of the file system (in tests another one). The largest number where nothing says a limit.
std::int64_t available_memory(const std::filesystem::path& root);
// CPUs whose time the process may use (a quota, not a list of CPUs), rounded down, at least 1.
int cpu_quota(const std::filesystem::path& root);

}  // namespace octavo::offload
