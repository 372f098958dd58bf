// What this build and this machine offer: version, CPU implementations and their choice, threads.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

OCTAVO_API std::string_view version();

struct Implementation {
  std::string_view name;  // "avx512vbmi", "avx512", "avx2", "neon", "scalar": what OCTAVO_FORCE_IMPL takes
  std::string_view description;
  bool supported = false;  // by this CPU
};

// Compiled implementations, fastest first; the last is always "scalar".
OCTAVO_API std::vector<Implementation> implementations();

// The one in use: the first supported one, or the one that OCTAVO_FORCE_IMPL names. With a name that is
// unknown or not supported here every operation returns an error; nothing is replaced in silence.
OCTAVO_API Result<std::string_view> implementation();

// Overrides the environment for this process (tests, benchmarks); an empty name returns to the default
// choice.
OCTAVO_API Status force_implementation(std::string_view name);

// The threads that the pool uses when a call asks for 0; by default the CPUs this process may run on.
OCTAVO_API int default_threads();
OCTAVO_API Status set_default_threads(int threads);

// Lets the calling thread run on every CPU that the process was given. A new thread has the mask of the one
// that made it, and an OpenMP runtime may have bound that to one CPU (OMP_PROC_BIND, KMP_AFFINITY). The
// pool's own threads do this by themselves.
OCTAVO_API void use_process_cpus();

struct CpuInfo {
  std::string model;
  int cores = 0;  // that this process may run on
  std::vector<std::string> features;
};
OCTAVO_API CpuInfo cpu_info();

struct GpuInfo {
  std::string name;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  bool usable = false;        // this build has code for it; list_gpus() does not check that
  bool fp8_hardware = false;  // converts fp8 in hardware; elsewhere in software, with the same bits
  std::string note;           // why it is not usable; else empty
};
struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string note;         // why the list is empty; else empty
  int runtime_version = 0;  // of the CUDA runtime in this build, 13000 for 13.0; 0 without CUDA
  int driver_version = 0;   // the newest CUDA that the driver supports; 0 without a driver
};

// Returns true if this build has the CUDA backend. Does not call the driver.
OCTAVO_API bool has_cuda();
// The properties of all visible GPUs. Opens no CUDA context: `usable` and `note` of each GPU are not set.
OCTAVO_API GpuReport list_gpus();
// One GPU, and whether this build runs on it. The check opens a CUDA context on this GPU, which takes some
// hundreds of megabytes of its memory. An error where there is no such GPU.
OCTAVO_API Result<GpuInfo> gpu_info(int device);
// All visible GPUs, each checked: opens a CUDA context on every GPU. A report such as `octavo info` may do
// that; a process that trains calls one of the functions above.
OCTAVO_API GpuReport gpu_info();

}  // namespace octavo
