// Computes the bucket layout of a run's trained parameters from its groups: which parameters can be divided
// among ranks, and where.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/optim/param_groups.h"
#include "train/optim/shard_layout.h"

#include <cstdint>

namespace octavo_train {

// Returns true if the optimizer states are divided among ranks (ZeRO).
[[nodiscard]] inline bool divides_states(const TrainingSettings& training) {
  return training.parallel == Parallel::zero1 || training.parallel == Parallel::zero2;
}

// Returns the layout, which is identical on all ranks. `divided`: ZeRO; each parameter whose state cannot be
// divided (4bit-rank1) is then in a bucket that a single rank owns.
ParallelLayout lay_out(const ParameterGroups& groups, int ranks, bool divided,
                       std::int64_t bucket_bytes = kBucketBytes);

}  // namespace octavo_train
