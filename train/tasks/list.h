// The tasks of `octavo train`. A new task needs its folder and a line here (docs/guides/add_a_task.md). The
// first task is the default.
//
// A build may have other tasks: OCTAVO_TASKS names a header that defines `Tasks` instead, as the tests do.
// SPDX-License-Identifier: MIT
#pragma once

#if defined(OCTAVO_TASKS)
#include OCTAVO_TASKS
#else

#include "train/tasks/speech/entry.h"
#include "train/tasks/text/entry.h"

namespace octavo_train {

using Tasks = TaskList<TextEntry, SpeechEntry>;

}  // namespace octavo_train

#endif
