// Joins the ranks of a run.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/distributed/process_group.h"

#include <memory>
#include <optional>

namespace octavo_train {

// Waits for all ranks and returns their process group, or a group of one for a single process. Returns null
// if a signal (StopSignals) came before all ranks had joined. `failure` is set if all ranks know the error.
Result<std::shared_ptr<ProcessGroup>> join_ranks(const Config& config, const RankInfo& place,
                                                 std::optional<RankFailure>* failure = nullptr);

}  // namespace octavo_train
