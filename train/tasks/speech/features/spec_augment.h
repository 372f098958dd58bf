// SpecAugment: chooses the parts of a clip's features that training masks. The rule is NeMo's: with L frames,
// a time mask has floor(r * width * L) frames (floor(r * width) if the width is in frames) and begins at
// floor(r' * (L - its frames)), where r and r' are random numbers from 0 to below 1. A frequency mask follows
// the same rule, with the number of bands as L. Masks may overlap, and are filled with 0.
//
// r and r' depend only on (seed, step, draw), not on the batch, the device or the number of processes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/config/settings.h"

#include <cstdint>
#include <vector>

namespace octavo_train {

struct MaskSpan {
  std::int64_t start = 0, end = 0;  // end is exclusive
  friend bool operator==(const MaskSpan&, const MaskSpan&) = default;
};

struct Masks {
  std::vector<MaskSpan> time, frequency;
};

// Identifies a clip in a training step.
struct MaskKey {
  std::uint64_t seed = 0, step = 0, draw = 0;
};

// Returns the number of time and frequency masks that the settings ask for. A mask of width 0 masks nothing.
Masks draw_masks(const SpecAugmentSettings& settings, std::int64_t frames, std::int64_t bands,
                 const MaskKey& key);

}  // namespace octavo_train
