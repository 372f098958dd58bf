// What a run says of itself before its first step, on the console and in the log.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/console.h"
#include "train/run/session.h"

namespace octavo::train {

void introduce(Session& session, Console& console);

// What has become known of products in FP8 since the last call, on the console and in the log.
Status tell_fp8(Session& session, Console& console);

}  // namespace octavo::train
