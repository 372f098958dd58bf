// Text and the example of docs/guides/add_a_task.md, for OCTAVO_TASKS.
// SPDX-License-Identifier: MIT
#pragma once

#include "images/entry.h"
#include "train/tasks/text/entry.h"

namespace octavo::train {

using Tasks = TaskList<TextEntry, ImagesEntry>;

}  // namespace octavo::train
