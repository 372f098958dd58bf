// The arguments of a dropout inside a kernel, as the host passes them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo_train::cuda {

// `samples`, the sample numbers, is in device memory.
struct DropoutArgs {
  const std::int64_t* samples = nullptr;
  double probability = 0.0;  // 0: the other fields are not read
  std::uint64_t seed = 0, step = 0;
  std::uint32_t layer = 0;
};

}  // namespace octavo_train::cuda
