// Describes the hardware as JSON, for `octavo info` and the benchmarks.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/backend.h>

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::cli {

// Returns {"model", "cores", "features"}.
nlohmann::ordered_json cpu_json();

// Returns {"name", "compute_capability", "multiprocessors", "memory_bytes", "usable", "note",
// "fp8_conversion"}.
nlohmann::ordered_json gpu_json(const GpuInfo& gpu);

// Returns {"runtime", "driver"}, each like "13.0". Returns null without CUDA; "driver" is null without a
// driver.
nlohmann::ordered_json cuda_json(const GpuReport& report);

// Returns a string like "9.0".
std::string compute_capability(const GpuInfo& gpu);

}  // namespace octavo::cli
