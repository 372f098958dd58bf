// How a process joins the ranks of its run, and opens it with them.
// SPDX-License-Identifier: MIT
#pragma once

#include "session.h"
#include "train/config/config.h"
#include "train/world/world.h"

#include <octavo/status.h>

#include <memory>

namespace octavo::train {

// Waits for all ranks. Without a group: this process alone; more ranks than that are an error.
Result<std::shared_ptr<World>> join_ranks(const Config& config, const Place& place);

// open_session() whose exceptions are errors too, of which the other ranks are told; any other error they
// have alike.
Result<std::unique_ptr<Session>> open_joined(const Config& config, Console& console, Purpose purpose,
                                             const std::shared_ptr<World>& world);

}  // namespace octavo::train
