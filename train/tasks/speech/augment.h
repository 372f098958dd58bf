// SpecAugment: which parts of a clip a training pass does not see. NeMo's rule: with L frames, a part of the
// time has floor(r * width * L) frames (floor(r * width) where the width is in frames) and begins at
// floor(r' * (L - its frames)); a part of the frequencies likewise, with all bands. Parts may overlap, and
// are filled with 0.
//
// r and r' depend on (seed, step, draw) alone: not on the batch, the device or the number of processes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/settings.h"

#include <cstdint>
#include <vector>

namespace octavo::train {

struct MaskSpan {
  std::int64_t start = 0, end = 0;  // end is not in it
  friend bool operator==(const MaskSpan&, const MaskSpan&) = default;
};

struct Masks {
  std::vector<MaskSpan> time, frequency;
};

// What identifies a clip in a pass.
struct MaskKey {
  std::uint64_t seed = 0, step = 0, draw = 0;
};

// As many of each as the settings have; one of width 0 masks nothing.
Masks draw_masks(const SpecAugmentSettings& settings, std::int64_t frames, std::int64_t bands,
                 const MaskKey& key);

}  // namespace octavo::train
