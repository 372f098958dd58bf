// How a process joins the ranks of its run.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"
#include "train/distributed/world.h"

#include <octavo/status.h>

#include <memory>
#include <optional>

namespace octavo::train {

// Waits for all ranks. Without a group: this process alone; more ranks than that are an error. Null: a signal
// (StopSignals) came before all ranks were there. `failure` is set where the error is known to all ranks.
Result<std::shared_ptr<World>> join_ranks(const Config& config, const Place& place,
                                          std::optional<RankFailure>* failure = nullptr);

}  // namespace octavo::train
