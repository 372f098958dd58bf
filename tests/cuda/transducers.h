// Helpers of the tests of both entries of the transducer loss on a GPU.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/cuda/device.h"

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace test {

// The allowed difference of two numbers: a part of the number itself, and a part of the largest of all.
struct Tolerance {
  double own, most;
};

// Returns "" if all differences are allowed; NaN and infinities must be equal.
inline std::string far_from(const std::string& what, std::span<const float> got, std::span<const float> want,
                            Tolerance tolerance) {
  double most = 0.0;
  for (const float x : want) {
    if (std::isfinite(x)) most = std::max(most, std::fabs(static_cast<double>(x)));
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto x = static_cast<double>(got[i]), y = static_cast<double>(want[i]);
    const bool equal = x == y || (std::isnan(x) && std::isnan(y));
    if (equal || std::fabs(x - y) <= tolerance.own * std::fabs(y) + tolerance.most * most) continue;
    return what + " " + std::to_string(i) + ": got " + std::to_string(x) + ", expected " + std::to_string(y) +
           ", the largest is " + std::to_string(most);
  }
  return "";
}

// A record's denominator is rounded to fp32, and alignments are sums over fewer than 100 records.
inline constexpr Tolerance kLosses{4e-6, 0.0};

// Adds a buffer with the bytes of an array.
inline std::size_t add(DeviceMemory& memory, const void* data, std::size_t bytes, std::int64_t phase = 0) {
  const std::size_t slot = memory.add(static_cast<std::int64_t>(bytes), phase);
  if (bytes > 0) std::memcpy(memory.host(slot), data, bytes);
  return slot;
}
inline float* floats(DeviceMemory& memory, std::size_t slot) {
  return reinterpret_cast<float*>(memory.device(slot));
}
inline std::vector<float> values(DeviceMemory& memory, std::size_t slot) {
  std::vector<float> out(usize(memory.size(slot)) / 4);
  std::memcpy(out.data(), memory.host(slot), 4 * out.size());
  return out;
}

}  // namespace test
