// Implements the rendezvous of ranks: through the store the ranks check that all have joined and compute on
// the same kind of device, and then create their process groups.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/process_group.h"
#include "train/distributed/watchdog.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <optional>

namespace octavo_train {

struct Meeting {
  std::shared_ptr<Watchdog> monitor;
  c10::intrusive_ptr<c10d::Backend> tensors, hosts;
};

// Waits for all ranks of `rank_info`. An error names the ranks that have not joined or that differ. `common`
// is set if every rank has the same error.
Result<Meeting> rendezvous(const RankInfo& rank_info, const torch::Device& device,
                           const ProcessGroupOptions& options, std::optional<RankFailure>& common);

}  // namespace octavo_train
