// The layout of a run's trained parameters, from its groups: which parameters can be divided, and where.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/groups.h"
#include "train/parallel/layout.h"

#include <cstdint>

namespace octavo::train {

// The same on all ranks. `divided`: ZeRO; parameters whose states cannot be divided (4bit-rank1) are then in
// buckets of one rank each.
ParallelLayout lay_out(const ParameterGroups& groups, int ranks, bool divided,
                       std::int64_t bucket_bytes = kBucketBytes);

}  // namespace octavo::train
