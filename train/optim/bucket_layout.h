// The layout of a run's trained parameters, from its groups: which parameters can be divided, and where.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/optim/param_groups.h"
#include "train/optim/shard_layout.h"

#include <cstdint>

namespace octavo::train {

// Whether ranks have parts of the optimizer's states (ZeRO).
[[nodiscard]] inline bool divides_states(const TrainingSettings& training) {
  return training.parallel == Parallel::zero1 || training.parallel == Parallel::zero2;
}

// The same on all ranks. `divided`: ZeRO; parameters whose states cannot be divided (4bit-rank1) are then in
// buckets of one rank each.
ParallelLayout lay_out(const ParameterGroups& groups, int ranks, bool divided,
                       std::int64_t bucket_bytes = kBucketBytes);

}  // namespace octavo::train
