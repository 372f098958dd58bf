// What the ranks of a run must have alike, and how it is told or made so.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/run/agreement.h"
#include "train/run/session.h"

#include <vector>

namespace octavo::train {

// Known before anything is read: the version, the device's type, and the settings without paths, which may
// be others on another machine.
std::vector<SharedFact> settings_facts(const Session& session);

// REQUIRES: data and model are there.
std::vector<SharedFact> model_facts(const Session& session);

// Gives all ranks the weights and buffers of rank 0: random numbers of different processors may differ in
// their last bits.
void share_weights(Session& session);

}  // namespace octavo::train
