// Implements torch's autocast for tensors without memory (meta device): its lists of operators, and its cache
// of cast weights.
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace octavo_train {

// The dispatch key of autocast_type(Meta).
inline constexpr auto kFakeAutocast = c10::DispatchKey::AutocastPrivateUse1;

void add_fake_autocast(::torch::Library& library);
// Clears the cache of cast weights. Real autocast does so when its scope ends.
void forget_fake_casts();

}  // namespace octavo_train
