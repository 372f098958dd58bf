// What a training step will need, before it runs: memory by owner from a trace of allocations, time from a
// list of kernels, both for a GPU that need not be here. A trace comes from a run of the model on tensors
// without memory; who makes one is above this library (the trainer, the Python package).
//
// Nothing here computes, allocates on a device or asks one, but for find_gpu("this").
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

// What a product computes in. tf32 is fp32 with products on the matrix units.
enum class Precision : std::uint32_t { fp32 = 0, tf32 = 1, fp16 = 2, bf16 = 3, fp8 = 4 };
inline constexpr std::size_t kPrecisions = 5;

struct Gpu {
  std::string key;   // "h200": what find_gpu() takes
  std::string name;  // "NVIDIA H200 SXM"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t memory = 0;                  // bytes that the driver says it has
  std::int64_t context = 0;                 // of these, what a process has before its first tensor
  double bandwidth = 0;                     // bytes a second, by the vendor's figures
  std::array<double, kPrecisions> flops{};  // dense, by the vendor's figures; 0: the GPU cannot
  std::int64_t cache = 0;                   // second-level, bytes
  double peer_bandwidth = 0;                // to another GPU of the host, bytes a second each way
  double host_bandwidth = 0;                // to host memory, likewise
  int gigabytes = 0;                        // of its memory, as it is sold: 24 of an RTX 4090
  int device = -1;                          // its number on this machine, of "this"; -1: of any other
};
// In the order of a list for people: newest first.
OCTAVO_API const std::vector<Gpu>& known_gpus();
// `text` is one of three:
// - a key or a name in any spelling: "h100", "RTX 4090", "NVIDIA A100-SXM4-80GB";
// - a size as GPUs are sold, "24GB" or "24 GiB": the slowest known GPU of this size, or, where none has it,
//   the slowest larger one with its memory cut;
// - "this": the first GPU of this machine, with the memory that its driver says; "this:1" is the second.
// An unknown one is an error that lists the keys and says how to give a size.
OCTAVO_API Result<Gpu> find_gpu(std::string_view text);

// --- memory ---

enum class Owner : std::uint32_t {
  weights = 0,
  gradients = 1,
  states = 2,
  master = 3,         // what bf16 weights lack
  activations = 4,    // what passes make: kept for the backward pass, or within a pass
  workspace = 5,      // of kernels and libraries
  communication = 6,  // buffers of ranks
  batch = 7,          // the inputs
};
inline constexpr std::size_t kOwners = 8;
OCTAVO_API std::string_view name(Owner owner);

// In the order of the program. An id is that of one piece of memory between its two events; it may be used
// again.
struct Event {
  std::int64_t id = 0;
  std::int64_t bytes = 0;  // at least 0: it is taken; -1: it is given back
  Owner owner = Owner::activations;
};

// How torch's caching allocator divides what it takes from the device.
struct AllocatorRules {
  bool expandable_segments = true;  // what `octavo train` sets; torch's own default is false
};

struct MemoryUse {
  std::int64_t allocated = 0;  // the most at once, in the allocator's blocks: torch's max_memory_allocated
  std::int64_t reserved = 0;   // the most that it took from the device: torch's max_memory_reserved
  std::array<std::int64_t, kOwners> owners{};  // when `allocated` was reached; bytes as asked for
  std::int64_t rounding = 0;                   // `allocated` less their sum
  std::int64_t peak_event = -1;                // the number of the event that reached it; -1: there is none
};
// Errors: an id that is taken twice, or given back without having been taken; a negative size other than -1.
OCTAVO_API Result<MemoryUse> simulate(std::span<const Event> events, const AllocatorRules& rules = {});

// --- time ---

enum class Work : std::uint32_t {
  stream = 0,   // reads and writes memory: elementwise work, norms, casts, copies, reductions
  product = 1,  // a matrix product, or several side by side
};

struct Kernel {
  Work work = Work::stream;
  Precision precision = Precision::bf16;
  double bytes = 0;      // read and written, each once
  double bandwidth = 1;  // of `bytes`: what share of a copy's speed it reaches; 1 where nothing is known
  // Of a product: `batch` times [rows, inner] . [inner, columns].
  std::int64_t batch = 1, rows = 0, columns = 0, inner = 0;
  std::int64_t launches = 1;
  std::int64_t times = 1;  // how many times the step runs this kernel
};

enum class Bound : std::uint32_t { memory = 0, arithmetic = 1, launch = 2 };
OCTAVO_API std::string_view name(Bound bound);

struct KernelTime {
  double seconds = 0;
  Bound bound = Bound::memory;
};
// Of a kernel among others: little more than the larger of what its bytes and its arithmetic take at rates
// that such sizes reach, and the gap to the next one for each launch. `bound` is the largest of the three. A
// GPU that lacks a precision computes in the next wider one that it has.
OCTAVO_API KernelTime time(const Gpu& gpu, const Kernel& kernel);

struct StepTime {
  double seconds = 0;  // the larger of the GPU's and the host's; where they are alike, up to 12% more
  double gpu_seconds = 0;
  double host_seconds = 0;           // to launch everything
  std::array<double, 3> by_bound{};  // of gpu_seconds, by Bound
};
// Steps follow one another: nothing waits for the end of each. `launch_seconds`: what the host needs for one
// launch.
OCTAVO_API StepTime time(const Gpu& gpu, std::span<const Kernel> kernels, double launch_seconds);

// --- ranks ---

// What a rank sends in a step, as soon as it is ready.
struct Bucket {
  double ready = 0;  // seconds from the beginning of the backward pass
  std::int64_t bytes = 0;
};
struct Links {
  std::int64_t ranks = 1, per_host = 8;
  double within = 0;   // bytes a second of one GPU, each way, to the others of its host
  double between = 0;  // bytes a second of one GPU, each way, to other hosts
  double latency = 5e-6;
};
// Seconds of an all-reduce of so many bytes by rings; a reduce-scatter or an all-gather takes half of them.
// Several hosts: each adds up within, and its ranks then reduce a part each with those of the other hosts.
OCTAVO_API double all_reduce_seconds(const Links& links, std::int64_t bytes);
// Buckets go one after the other. Seconds that the last one ends after the backward pass, which takes
// `backward`.
OCTAVO_API double exposed_seconds(const Links& links, std::span<const Bucket> buckets, double backward);

}  // namespace octavo::plan
