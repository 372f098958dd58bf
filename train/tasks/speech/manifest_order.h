// How the clips of several manifests follow each other in an epoch: each as often as its manifest weighs,
// mixed evenly.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <span>
#include <vector>

namespace octavo::train {

inline constexpr double kMostTurns = 1000;  // the largest weight

struct Turns {
  std::int64_t clips = 0;  // of a manifest; they are numbered on from those of the manifests before it
  double weight = 1;
};

// The clip of every entry; empty where that is each once, in order. The first n entries are of every manifest
// in proportion to clips × weight, within one. Those of one manifest go through it in order, as often as the
// whole part of its weight says, and then through a random subset that depends on the number of clips alone;
// a larger fraction adds clips to a smaller one's.
Result<std::vector<std::uint32_t>> mixed_turns(std::span<const Turns> manifests);

}  // namespace octavo::train
