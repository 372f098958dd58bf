// torch's autocast for tensors without memory: its lists of operators, and its cache of cast weights.
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace octavo::train {

// The key of autocast_type(Meta).
inline constexpr auto kFakeAutocast = c10::DispatchKey::AutocastPrivateUse1;

void add_fake_autocast(::torch::Library& library);
// Weights that were cast since the last call: torch forgets them when an autocast scope ends.
void forget_fake_casts();

}  // namespace octavo::train
