// The settings of FP8 matmuls: the recipe of octavo/fp8.h, and what the trainer adds to it.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

namespace octavo_train {

// Selects the matmuls that run in FP8, among those of the forward and the backward pass: those measured to be
// faster in FP8, or all.
enum class Fp8Select { measure, always };
// Selects what happens on a device without FP8 units: an error, or a warning and matmuls in compute_dtype.
enum class Fp8Fallback { error, bf16 };

struct Fp8Settings {
  bool enabled = false;
  octavo::fp8::Settings recipe;
  Fp8Select select{};
  Fp8Fallback fallback{};
};

}  // namespace octavo_train
