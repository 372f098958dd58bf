// Implements the rendezvous of ranks: through the store the ranks check that all have joined and compute on
// the same kind of device, and then create their process groups.
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

// Waits for all ranks of `place`. An error names the ranks that have not joined or that differ. `common` is
// set if every rank has the same error.
Result<Meeting> meet(const Place& place, const torch::Device& device, const WorldOptions& options,
                     std::optional<RankFailure>& common);

}  // namespace octavo::train
