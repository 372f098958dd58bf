// A task in the list: a type whose functions say what it reads and make it. They are defined in two
// libraries, for a config is checked without LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::train {

template <class... Entry>
struct TaskList {};

}  // namespace octavo::train
