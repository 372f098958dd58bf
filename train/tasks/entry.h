// The list of tasks. An entry is a type whose static functions declare the task's config and create the task.
// They are defined in two libraries, because a config is checked without LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo_train {

template <class... Entry>
struct TaskList {};

}  // namespace octavo_train
