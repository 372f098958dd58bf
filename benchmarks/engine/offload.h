// Implements `octavo bench offload`: times iterations of one model with its states on the device, in host
// memory and streamed, and checks that the final weights are bitwise equal.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/offload.h>
#include <octavo/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

struct OffloadFlags {
  std::string device = "cpu", residences = "device,stream,host", state = "8bit", param_dtype = "bf16";
  std::optional<std::string> numel;
  std::int64_t layers = 0;  // 0: the default
  double work_ms = 0.0;     // 0: the default
  int repeat = 10, threads = 0;
  bool offload_gradients = false, clip = false, json = false;
  std::string trace;
};

void add_offload_options(CLI::App& command, OffloadFlags& flags);

struct OffloadRow {
  Residence residence = Residence::device;
  double ms = 0.0;        // per iteration: total wall time, without synchronization between iterations
  double model_ms = 0.0;  // per iteration without the step, in the same run
  std::int64_t device_bytes = 0, host_bytes = 0;
  std::uint64_t checksum = 0;
  std::string note;  // why host memory is not pinned
};

struct OffloadResult {
  Device device;
  std::int64_t layers = 0, numel = 0;
  std::vector<OffloadRow> rows;
};

// Throws a usage Failure if flags are wrong. With `trace`, the iterations of the one residence that is not
// `device` are written to that file.
OffloadResult run_offload(const OffloadFlags& flags);
std::string offload_table(const OffloadResult& result);
std::string offload_json(const OffloadResult& result);
// Returns an empty string, or which residences' weights differ from the first row's.
std::string offload_errors(const OffloadResult& result);

}  // namespace octavo::cli
