// Determines the order of the clips of several manifests in an epoch: each clip occurs as often as its
// manifest's weight says, and the manifests are interleaved evenly.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <span>
#include <vector>

namespace octavo_train {

inline constexpr double kMostTurns = 1000;  // the largest weight

struct Turns {
  std::int64_t clips = 0;  // clips of a manifest; numbers continue from the manifest before it
  double weight = 1;
};

// Returns the clip of each entry, or an empty vector if every clip occurs once, in order. The first n entries
// contain every manifest in proportion to clips × weight, within one entry. The entries of one manifest go
// through all its clips in order, as often as the integer part of its weight, and then through a random
// subset. The subset depends only on the number of clips and the fraction; a larger fraction adds clips to
// the subset of a smaller fraction.
Result<std::vector<std::uint32_t>> mixed_turns(std::span<const Turns> manifests);

}  // namespace octavo_train
