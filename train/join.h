// How a process joins the ranks of its run.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"
#include "train/world/world.h"

#include <octavo/status.h>

#include <memory>

namespace octavo::train {

// Waits for all ranks. Without a group: this process alone; more ranks than that are an error.
Result<std::shared_ptr<World>> join_ranks(const Config& config, const Place& place);

}  // namespace octavo::train
