// Parses device names and opens devices; see device.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/device.h"

#include "benchmarks/engine/cuda_device.h"
#include "apps/octavo/common/cli.h"

#include <octavo/backend.h>

#include <charconv>
#include <system_error>

namespace octavo::cli {

Device parse_device(const std::string& text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceKind::cuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  int index = 0;
  const char* const end = text.data() + text.size();
  if (text.starts_with(kPrefix)) {
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, index);
    if (error == std::errc() && stop == end && index >= 0) return {DeviceKind::cuda, index};
  }
  throw Failure(kExitUsage, "--device: got '" + text + "', expected cpu, cuda, or cuda:N such as cuda:1");
}

std::string device_name(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::unique_ptr<BenchDevice> make_device(Device device, int threads) {
  if (device.kind == DeviceKind::cpu) return make_host_device(threads);
  const GpuReport report = list_gpus();
  const std::string flag = "--device " + device_name(device) + ": ";
  if (report.gpus.empty()) throw Failure(kExitFailure, flag + report.note + "; use --device cpu");
  const int count = static_cast<int>(report.gpus.size());
  if (device.index >= count)
    throw Failure(kExitUsage, flag + "there is no such GPU, expected " +
                                  (count == 1 ? "cuda:0" : "cuda:0 to cuda:" + std::to_string(count - 1)));
  const GpuInfo gpu = take(gpu_info(device.index));
  if (!gpu.usable) throw Failure(kExitFailure, flag + gpu.name + " cannot be used: " + gpu.note);
  return make_cuda_device(device.index);
}

}  // namespace octavo::cli
