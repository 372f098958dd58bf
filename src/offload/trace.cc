// What overlaps in an offloaded step, as Chrome trace JSON.
// SPDX-License-Identifier: MIT
#include <octavo/offload.h>

#include <fstream>

namespace octavo {

void trace_offload(bool /*on*/) {}

Status write_offload_trace(const std::string& path) {
  std::ofstream file(path);
  file << "{\"traceEvents\": []}\n";
  return file ? Status() : Status::failed("[offload] trace: " + path + " cannot be written");
}

}  // namespace octavo
