// How the ranks of a run open it together: a stage that fails on one fails on all, and what must be the same
// on all is compared before the first step.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/world.h"

#include <octavo/status.h>

#include <functional>
#include <span>
#include <string>

namespace octavo::train {

// Does a stage on every rank. Where it fails on any, by a status or an exception, all have the first error by
// rank, which names the rank. Without a group it is the stage alone, whose exceptions pass.
Status together(World& world, const std::function<Status()>& stage);

// What every rank must have as rank 0 has it.
struct SharedFact {
  std::string name;  // "settings"
  std::string text;  // lines
};

// An error, the same on all ranks, names the first fact that differs, the ranks, and the first line that
// does. The facts travel as hashes; what differs, as text. REQUIRES: facts of the same names on all ranks.
Status same_on_all(World& world, std::span<const SharedFact> facts);

}  // namespace octavo::train
