// SPDX-License-Identifier: MIT
#include "fp8/refuse.h"
#include "optimizers/resolve.h"

#include <octavo/backend.h>

#include <string>

namespace octavo::fp8 {

Status supported(Device device) {
  const std::string need =
      "a GPU of compute capability 8.9 or later (Ada, Hopper and newer), or bf16 instead";
  if (Status bad = check_device("[fp8]", device); !bad.ok()) return bad;
  if (device.kind == DeviceKind::cpu)
    return Status::unsupported(std::string(kWhere) + "device: got cpu, expected " + need);
  const GpuReport report = gpu_info();
  const std::string which = std::string(kWhere) + "device: got cuda:" + std::to_string(device.index);
  if (static_cast<std::size_t>(device.index) >= report.gpus.size()) {
    return Status::unsupported(which + ", which is not there" +
                               (report.note.empty() ? "" : " (" + report.note + ")") + ", expected " + need);
  }
  const GpuInfo& gpu = report.gpus[static_cast<std::size_t>(device.index)];
  if (!gpu.usable) return Status::unsupported(which + " (" + gpu.name + "): " + gpu.note);
  if (gpu.fp8_hardware) return {};
  return Status::unsupported(which + " (" + gpu.name + ", compute capability " +
                             std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor) +
                             "), expected " + need);
}

}  // namespace octavo::fp8
