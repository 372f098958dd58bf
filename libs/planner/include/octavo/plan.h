// Forecasts what a training step will need: memory by owner from a trace of allocations, and time from a list
// of kernels, both for a GPU that need not be present. A trace is recorded by a run of the model on tensors
// without memory, in the trainer or the Python package.
//
// Nothing here computes, allocates on a device or queries one, except find_gpu("this").
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::plan {

// --- GPUs ---

// The precision of a matmul. tf32 is fp32 with matmuls on the matrix units.
enum class Precision : std::uint32_t { fp32 = 0, tf32 = 1, fp16 = 2, bf16 = 3, fp8 = 4 };
inline constexpr std::size_t kPrecisions = 5;

struct Gpu {
  std::string key;   // "h200": what find_gpu() takes
  std::string name;  // "NVIDIA H200 SXM"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t memory = 0;                  // bytes that the driver reports
  std::int64_t context = 0;                 // the part of these that a process uses before its first tensor
  double bandwidth = 0;                     // bytes per second, by the vendor's figures
  std::array<double, kPrecisions> flops{};  // dense, by the vendor's figures; 0: unsupported
  std::int64_t cache = 0;                   // second-level, in bytes
  double peer_bandwidth = 0;                // to another GPU of the host, bytes per second each way
  double host_bandwidth = 0;                // to host memory, bytes per second each way
  int gigabytes = 0;                        // of its memory, as advertised: 24 for an RTX 4090
  int device = -1;                          // its number on this machine, of "this"; -1: of any other
};
// The GPUs in the order of a displayed list: newest first.
OCTAVO_API const std::vector<Gpu>& known_gpus();
// `text` is one of three:
// - a key or a name in any spelling: "h100", "RTX 4090", "NVIDIA A100-SXM4-80GB";
// - a size as GPUs are sold, "24GB" or "24 GiB": the slowest registered GPU of this size, or, if none has it,
//   the slowest larger one with its memory reduced;
// - "this": the first GPU of this machine, with the memory that its driver reports; "this:1" is the second.
// Any other text is an error that lists the keys and explains how to give a size.
OCTAVO_API Result<Gpu> find_gpu(std::string_view text);

// --- memory ---

enum class Owner : std::uint32_t {
  weights = 0,
  gradients = 1,
  states = 2,
  master = 3,         // the residuals of bf16 weights
  activations = 4,    // tensors of the forward and backward pass
  workspace = 5,      // the workspaces of kernels and libraries
  communication = 6,  // buffers of collectives
  batch = 7,          // the inputs
};
inline constexpr std::size_t kOwners = 8;
OCTAVO_API std::string_view name(Owner owner);

// Events are in the order of the program. An id identifies one allocation between its two events and may then
// be reused.
struct Event {
  std::int64_t id = 0;
  std::int64_t bytes = 0;  // at least 0: an allocation; -1: it is freed
  Owner owner = Owner::activations;
};

// The settings of torch's caching allocator.
struct AllocatorRules {
  bool expandable_segments = true;  // the setting of `octavo train`; torch's own default is false
};

struct MemoryUse {
  std::int64_t allocated = 0;  // the peak of allocated blocks: torch's max_memory_allocated
  std::int64_t reserved = 0;   // the peak of memory reserved on the device: torch's max_memory_reserved
  std::array<std::int64_t, kOwners> owners{};  // at the peak of `allocated`; bytes as requested
  std::int64_t rounding = 0;                   // `allocated` minus their sum
  std::int64_t peak_event = -1;                // the number of the event at the peak; -1: there is none
};
// Errors: an id that is allocated twice, or freed without having been allocated; a negative size other than
// -1.
OCTAVO_API Result<MemoryUse> simulate(std::span<const Event> events, const AllocatorRules& rules = {});

// --- time ---

enum class Work : std::uint32_t {
  stream = 0,   // memory traffic: elementwise work, norms, casts, copies, reductions
  product = 1,  // a matmul, or several batched ones
};

struct Kernel {
  Work work = Work::stream;
  Precision precision = Precision::bf16;
  double bytes = 0;      // read and written, each counted once
  double bandwidth = 1;  // the share of a copy's speed that `bytes` reach; 1 if unknown
  // A matmul is `batch` times [rows, inner] . [inner, columns].
  std::int64_t batch = 1, rows = 0, columns = 0, inner = 0;
  std::int64_t launches = 1;
  std::int64_t times = 1;  // the number of launches in the step
};

enum class Bound : std::uint32_t { memory = 0, arithmetic = 1, launch = 2 };
OCTAVO_API std::string_view name(Bound bound);

struct KernelTime {
  double seconds = 0;
  Bound bound = Bound::memory;
};
// Forecasts a kernel among others: slightly more than the larger of its memory time and its arithmetic time,
// at rates that such sizes reach, and the gap to the next one for each launch. `bound` is the largest of the
// three. A GPU without a precision computes in the next wider one that it has.
OCTAVO_API KernelTime time(const Gpu& gpu, const Kernel& kernel);

struct StepTime {
  double seconds = 0;  // the larger of the GPU's and the host's; if they are equal, up to 12% more
  double gpu_seconds = 0;
  double host_seconds = 0;           // the time to launch everything
  std::array<double, 3> by_bound{};  // the parts of gpu_seconds, by Bound
};
// Steps follow one another without waiting for the end of each. `launch_seconds` is the host's time for one
// launch.
OCTAVO_API StepTime time(const Gpu& gpu, std::span<const Kernel> kernels, double launch_seconds);

// --- ranks ---

// A message that a rank sends in a step as soon as it is ready.
struct Bucket {
  double ready = 0;  // seconds after the start of the backward pass
  std::int64_t bytes = 0;
};
struct Links {
  std::int64_t ranks = 1, per_host = 8;
  double within = 0;   // bytes per second of one GPU, each way, to the others of its host
  double between = 0;  // bytes per second of one GPU, each way, to other hosts
  double latency = 5e-6;
};
// Returns the seconds of an all-reduce of `bytes` by rings; a reduce-scatter or an all-gather takes half of
// them. With several hosts, each host reduces first, and then each rank reduces its part with those of the
// other hosts.
OCTAVO_API double all_reduce_seconds(const Links& links, std::int64_t bytes);
// Buckets are sent one after the other. Returns the seconds from the end of the backward pass, which takes
// `backward`, to the end of the last one.
OCTAVO_API double exposed_seconds(const Links& links, std::span<const Bucket> buckets, double backward);

}  // namespace octavo::plan
