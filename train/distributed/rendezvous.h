// How ranks find each other: through the store they learn that all are there and compute on the same kind of
// device, and then make their groups.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/monitor.h"
#include "train/distributed/world.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <optional>

namespace octavo::train {

struct Meeting {
  std::shared_ptr<Monitor> monitor;
  c10::intrusive_ptr<c10d::Backend> tensors, hosts;
};

// Waits for all ranks of `place`. An error names those that have not come, or that differ; `common` is set
// where every rank has the same one.
Result<Meeting> meet(const Place& place, const torch::Device& device, const WorldOptions& options,
                     std::optional<RankFailure>& common);

}  // namespace octavo::train
