// Enables FP8 on the CPU for tests.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>

namespace octavo_train {

// Enables the CPU's FP8 reference implementation during its lifetime.
class Fp8Reference {
 public:
  Fp8Reference() { setenv("OCTAVO_FP8_REFERENCE", "1", 1); }
  ~Fp8Reference() { unsetenv("OCTAVO_FP8_REFERENCE"); }
  Fp8Reference(const Fp8Reference&) = delete;
  Fp8Reference& operator=(const Fp8Reference&) = delete;
};

}  // namespace octavo_train
