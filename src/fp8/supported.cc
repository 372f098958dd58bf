// SPDX-License-Identifier: MIT
#include "fp8/invalid_argument.h"
#include "optimizers/checks.h"

#include <octavo/backend.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace octavo::fp8 {
namespace {

constexpr const char* kNeed =
    "a GPU of compute capability 8.9 or later (Ada, Hopper and newer), or bf16 instead";

// cuBLASLt supports these scales on Hopper only.
bool needs_hopper(Recipe recipe) { return recipe == Recipe::rowwise || recipe == Recipe::block; }

// `which` is the device's name in messages.
Status supported_by(const std::string& which, const GpuInfo& gpu, Recipe recipe) {
  const std::string found = std::string(kWhere) + "device: got " + which + " (" + gpu.name;
  if (!gpu.usable) return Status::unsupported(found + "): " + gpu.note);
  const std::string capability = ", compute capability " + std::to_string(gpu.compute_major) + "." +
                                 std::to_string(gpu.compute_minor) + ")";
  if (!gpu.fp8_hardware) return Status::unsupported(found + capability + ", expected " + kNeed);
  if (needs_hopper(recipe) && (gpu.compute_major != 9 || gpu.compute_minor != 0)) {
    return Status::unsupported(found + capability + ", expected one of 9.0 (Hopper) for the scales of " +
                               std::string(name(recipe)) + ", or the recipe delayed or current");
  }
  return {};
}

}  // namespace

Status supported(const GpuInfo& gpu, Recipe recipe) { return supported_by("a GPU", gpu, recipe); }

Status supported(Device device, Recipe recipe) {
  if (Status bad = check_device("[fp8]", device); !bad.ok()) return bad;
  if (Status bad = check_enum("recipe", recipe); !bad.ok()) return bad;
  if (device.kind == DeviceKind::cpu) {
    const char* const reference = std::getenv("OCTAVO_FP8_REFERENCE");
    if (reference != nullptr && std::string_view(reference) == "1") return {};
    return Status::unsupported(std::string(kWhere) + "device: got cpu, expected " + kNeed);
  }
  const GpuReport report = list_gpus();
  const std::string which = "cuda:" + std::to_string(device.index);
  if (static_cast<std::size_t>(device.index) >= report.gpus.size()) {
    return Status::unsupported(std::string(kWhere) + "device: got " + which + ", which is not there" +
                               (report.note.empty() ? "" : " (" + report.note + ")") + ", expected " + kNeed);
  }
  const Result<GpuInfo> gpu = gpu_info(device.index);
  return gpu.ok() ? supported_by(which, *gpu, recipe) : gpu.status();
}

}  // namespace octavo::fp8
