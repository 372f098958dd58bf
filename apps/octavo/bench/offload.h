// What `octavo bench offload` measures: iterations of one model with its states on the device, in host memory
// and streamed, and whether their weights end up with the same bits.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/offload_model.h"

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
  double ms = 0.0;        // of an iteration: wall time of all, without waiting between them
  double model_ms = 0.0;  // of the passes alone, in the same run
  std::int64_t device_bytes = 0, host_bytes = 0;
  std::uint64_t checksum = 0;
  std::string note;  // why memory is not pinned
};

struct OffloadResult {
  Device device;
  std::int64_t layers = 0, numel = 0;
  std::vector<OffloadRow> rows;
};

// A usage Failure where flags are wrong. With a trace the iterations of the one residence that is not
// `device` are written there.
OffloadResult run_offload(const OffloadFlags& flags);
std::string offload_table(const OffloadResult& result);
std::string offload_json(const OffloadResult& result);
// Empty, or which residences' weights differ from the first row's.
std::string offload_errors(const OffloadResult& result);

}  // namespace octavo::cli
