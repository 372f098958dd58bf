// Finds the CPUs that the process may use. The calling thread may be bound to fewer.
// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

namespace octavo::cpu {

// Returns the CPUs of the process's main thread, as set by taskset, numactl or a cgroup's cpuset. If an
// OpenMP runtime has bound the main thread to a place (OMP_PROC_BIND, KMP_AFFINITY, GOMP_CPU_AFFINITY),
// returns the CPUs of all of its places, which the runtime made from the process's original mask. The set is
// empty if the system call fails.
cpu_set_t process_cpus();

}  // namespace octavo::cpu
