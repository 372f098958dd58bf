// SPDX-License-Identifier: MIT
#include "offload/host_threads.h"

#include "cpu/threads.h"
#include "offload/cgroup_limits.h"

#include <algorithm>

namespace octavo::offload {

int host_threads_of(int pool, int cpus) { return std::min(pool, std::max(1, cpus - 1)); }

int host_threads(int asked) {
  if (asked > 0) return asked;
  static const int quota = cpu_quota("/");  // read once: files, at every step, cost more than they tell
  return host_threads_of(cpu::default_pool_threads(), std::min(cpu::available_cpus(), quota));
}

}  // namespace octavo::offload
