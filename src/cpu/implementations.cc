// Lists the implementations that are compiled in and that this CPU can run, and chooses one.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"

#include "cpu/affinity.h"
#include "cpu/threads.h"

#include <octavo/backend.h>
#include <octavo/version.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

namespace octavo {
namespace cpu {

#if defined(OCTAVO_AVX512)
extern const Kernels kAvx512VbmiKernels;
extern const Kernels kAvx512Kernels;
#endif
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif
extern const Kernels kScalarKernels;

namespace {

struct Candidate {
  const Kernels* kernels;
  bool (*supported)();
};

#if defined(__x86_64__)
bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("aes") &&
         __builtin_cpu_supports("pclmul");
}
#endif
#if defined(OCTAVO_AVX512)
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
bool has_avx512vbmi() { return has_avx512() && __builtin_cpu_supports("avx512vbmi"); }
#endif
bool always() { return true; }

// The fastest is first, the reference last.
constexpr Candidate kCandidates[] = {
#if defined(OCTAVO_AVX512)
    {&kAvx512VbmiKernels, has_avx512vbmi},
    {&kAvx512Kernels, has_avx512},
#endif
#if defined(__x86_64__)
    {&kAvx2Kernels, has_avx2},
#elif defined(__aarch64__)
    {&kNeonKernels, always},
#endif
    {&kScalarKernels, always},
};

std::atomic<const Kernels*> forced{nullptr};

Result<const Kernels*> find(std::string_view wanted, std::string_view source) {
  std::string usable;
  for (const auto& candidate : kCandidates) {
    const bool supported = candidate.supported();
    if (wanted == candidate.kernels->name) {
      if (supported) return candidate.kernels;
      return Status::unsupported("[cpu] ", source, ": '", wanted,
                                 "' is compiled in, but this CPU lacks its instructions");
    }
    if (supported) usable += (usable.empty() ? "" : ", ") + std::string(candidate.kernels->name);
  }
  return Status::invalid("[cpu] ", source, ": got '", wanted, "', expected one of ", usable);
}

const Kernels* best() {
  for (const auto& candidate : kCandidates) {
    if (candidate.supported()) return candidate.kernels;
  }
  return &kScalarKernels;
}

}  // namespace

Result<const Kernels*> kernels() {
  if (const Kernels* chosen = forced.load(std::memory_order_acquire)) return chosen;
  static const Result<const Kernels*> from_environment = [] {
    const char* name = std::getenv("OCTAVO_FORCE_IMPL");
    return name != nullptr && *name != '\0' ? find(name, "OCTAVO_FORCE_IMPL")
                                            : Result<const Kernels*>(best());
  }();
  return from_environment;
}

}  // namespace cpu

#define OCTAVO_TEXT_(x) #x
#define OCTAVO_TEXT(x) OCTAVO_TEXT_(x)
std::string_view version() {
  return OCTAVO_TEXT(OCTAVO_VERSION_MAJOR) "." OCTAVO_TEXT(OCTAVO_VERSION_MINOR) "." OCTAVO_TEXT(
      OCTAVO_VERSION_PATCH);
}

std::vector<Implementation> implementations() {
  std::vector<Implementation> list;
  for (const auto& candidate : cpu::kCandidates) {
    list.push_back({candidate.kernels->name, candidate.kernels->description, candidate.supported()});
  }
  return list;
}

Result<std::string_view> implementation() {
  const auto chosen = cpu::kernels();
  if (!chosen.ok()) return chosen.status();
  return std::string_view((*chosen)->name);
}

Status force_implementation(std::string_view name) {
  if (name.empty()) {
    cpu::forced = nullptr;
    return {};
  }
  const auto found = cpu::find(name, "force_implementation");
  if (found.ok()) cpu::forced.store(*found, std::memory_order_release);
  return found.status();
}

int default_threads() { return cpu::default_pool_threads(); }

Status set_default_threads(int threads) {
  if (threads < 0 || threads > 4096) {
    return Status::invalid("[threads] threads: got ", threads, ", expected 1 to 4096, or 0 for all CPUs");
  }
  cpu::set_default_pool_threads(threads);
  return {};
}

void use_process_cpus() {
  const cpu_set_t cpus = cpu::process_cpus();
  (void)sched_setaffinity(0, sizeof cpus, &cpus);  // the system rejects an empty set
}

CpuInfo cpu_info() {
  CpuInfo info;
  info.cores = cpu::available_cpus();
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon != std::string::npos && line.starts_with("model name")) {
      info.model = line.substr(std::min(line.size(), colon + 2));
      break;
    }
  }
#if defined(__x86_64__)
  if (info.model.empty()) info.model = "x86-64";
  const auto add = [&](bool has, const char* name) {
    if (has) info.features.emplace_back(name);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("f16c"), "f16c");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  add(__builtin_cpu_supports("avx512vbmi"), "avx512vbmi");
#elif defined(__aarch64__)
  if (info.model.empty()) info.model = "AArch64";
  info.features.emplace_back("neon");
#endif
  return info;
}

}  // namespace octavo
