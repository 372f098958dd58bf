// Describes this build and this machine: version, CPU implementations, threads, processor and GPUs.
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
  std::string_view name;  // a value of OCTAVO_FORCE_IMPL: "avx512vbmi", "avx512", "avx2", "neon", "scalar"
  std::string_view description;
  bool supported = false;  // This CPU can run it.
};

// Returns the compiled implementations, fastest first; the last is always "scalar".
OCTAVO_API std::vector<Implementation> implementations();

// Returns the implementation in use: the one that OCTAVO_FORCE_IMPL names, else the first supported one. If
// that name is unknown or this CPU does not support it, every operation returns an error; none falls back.
OCTAVO_API Result<std::string_view> implementation();

// Overrides OCTAVO_FORCE_IMPL for this process (tests, benchmarks). An empty name restores the default
// choice.
OCTAVO_API Status force_implementation(std::string_view name);

// Returns the number of threads that the pool uses when a call asks for 0. The default is the number of CPUs
// that this process may run on.
OCTAVO_API int default_threads();
OCTAVO_API Status set_default_threads(int threads);

// Lets the calling thread run on every CPU that the process may use. A new thread inherits its creator's
// affinity mask, which an OpenMP runtime may have reduced to one CPU (OMP_PROC_BIND, KMP_AFFINITY). The
// pool's threads call this automatically.
OCTAVO_API void use_process_cpus();

struct CpuInfo {
  std::string model;
  int cores = 0;  // the number of CPUs that this process may run on
  std::vector<std::string> features;
};
OCTAVO_API CpuInfo cpu_info();

struct GpuInfo {
  std::string name;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  bool usable = false;        // This build has code for the GPU. list_gpus() does not set this field.
  bool fp8_hardware = false;  // The GPU converts FP8 in hardware; others do in software, with equal bits.
  std::string note;           // the reason if the GPU is not usable; else empty
};
struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string note;         // the reason if the list is empty; else empty
  int runtime_version = 0;  // the CUDA runtime of this build, 13000 for 13.0; 0 without CUDA
  int driver_version = 0;   // the newest CUDA version that the driver supports; 0 without a driver
};

// Returns true if this build has the CUDA backend. The driver is not called.
OCTAVO_API bool has_cuda();
// Returns the properties of all visible GPUs without opening a CUDA context. `usable` and `note` of each GPU
// are not set.
OCTAVO_API GpuReport list_gpus();
// Returns one GPU with `usable` and `note` set. The check opens a CUDA context on this GPU, which takes
// hundreds of megabytes of its memory. Returns an error if the GPU does not exist.
OCTAVO_API Result<GpuInfo> gpu_info(int device);
// Returns all visible GPUs with `usable` and `note` set, which opens a CUDA context on each of them. This is
// for reports such as `octavo info`. A training process must call one of the functions above instead.
OCTAVO_API GpuReport gpu_info();

}  // namespace octavo
