// How many threads the CPU's part of an offloaded step takes.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::offload {

// `asked` (0: nobody has): the pool's, but one CPU is left to the framework, whose own thread works
// meanwhile, and a container's limit on CPU time counts: beyond it all threads would be stopped, the
// framework's too.
int host_threads(int asked = 0);
// The rule: of a pool of so many threads, where the process may use so many CPUs.
int host_threads_of(int pool, int cpus);

}  // namespace octavo::offload
