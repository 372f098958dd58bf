// Hardware as JSON; see hardware_json.h.
// SPDX-License-Identifier: MIT
#include "cli/hardware_json.h"

#include <nlohmann/json.hpp>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;

// Converts CUDA's version numbers: 13000 is 13.0 and 12080 is 12.8.
json version_text(int version) {
  if (version == 0) return {};
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

json cpu_json() {
  const CpuInfo cpu = cpu_info();
  return {{"model", cpu.model}, {"cores", cpu.cores}, {"features", cpu.features}};
}

std::string compute_capability(const GpuInfo& gpu) {
  return std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor);
}

json gpu_json(const GpuInfo& gpu) {
  return {{"name", gpu.name},
          {"compute_capability", compute_capability(gpu)},
          {"multiprocessors", gpu.multiprocessors},
          {"memory_bytes", gpu.memory_bytes},
          {"usable", gpu.usable},
          {"note", gpu.note},
          {"fp8_conversion", gpu.fp8_hardware ? "hardware" : "software"}};
}

json cuda_json(const GpuReport& report) {
  if (report.runtime_version == 0) return {};
  return {{"runtime", version_text(report.runtime_version)}, {"driver", version_text(report.driver_version)}};
}

}  // namespace octavo::cli
