// Lists the tasks of this test binary for OCTAVO_TASKS: text, and the example of docs/guides/add_a_task.md.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/images/entry.h"
#include "train/tasks/text/entry.h"

namespace octavo_train {

using Tasks = TaskList<TextEntry, ImagesEntry>;

}  // namespace octavo_train
