// What machines are made of, as `octavo info` and the benchmarks' JSON say it.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/backend.h>

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::cli {

// {"model", "cores", "features"}.
nlohmann::ordered_json cpu_json();

// {"name", "compute_capability", "multiprocessors", "memory_bytes", "usable", "note", "fp8_conversion"}.
nlohmann::ordered_json gpu_json(const GpuInfo& gpu);

// {"runtime", "driver"}: "13.0" each; null without CUDA, and a null driver where there is none.
nlohmann::ordered_json cuda_json(const GpuReport& report);

// "9.0".
std::string compute_capability(const GpuInfo& gpu);

}  // namespace octavo::cli
