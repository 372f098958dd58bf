// How much host memory is left.
// SPDX-License-Identifier: MIT
#include <octavo/offload.h>

#include <fstream>
#include <limits>
#include <string>

namespace octavo {

std::int64_t host_room() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) return 1024 * std::stoll(line.substr(13));
  }
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace octavo
