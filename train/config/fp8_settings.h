// Products in FP8, as a run chooses them: the recipe of octavo/fp8.h, and what the trainer adds to it.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

namespace octavo::train {

// Which passes of a product are in FP8: those that are faster so, by time, or all.
enum class Fp8Select { measure, always };
// What a device without FP8 units means.
enum class Fp8Fallback { error, bf16 };

struct Fp8Settings {
  bool enabled = false;
  fp8::Settings recipe;
  Fp8Select select{};
  Fp8Fallback fallback{};
};

}  // namespace octavo::train
