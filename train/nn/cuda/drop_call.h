// The dropout inside a kernel as the host asks for it.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::train::cuda {

// The samples' numbers are on the device.
struct DropCall {
  const std::int64_t* samples = nullptr;
  double probability = 0.0;  // 0: nothing else is looked at
  std::uint64_t seed = 0, step = 0;
  std::uint32_t layer = 0;
};

}  // namespace octavo::train::cuda
