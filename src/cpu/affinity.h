// Which CPUs this process may use, as opposed to the one that its calling thread may be bound to.
// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

namespace octavo::cpu {

// The CPUs that the process was given (taskset, numactl, a cgroup's cpuset): those of its main thread. Where
// an OpenMP runtime has bound the main thread to a place (OMP_PROC_BIND, KMP_AFFINITY, GOMP_CPU_AFFINITY),
// all of its places: it made them from what the process had before. Empty where the system does not say.
cpu_set_t process_cpus();

}  // namespace octavo::cpu
