// The tasks of this test binary, for OCTAVO_TASKS: the first example of docs/guides/add_a_task.md.
// SPDX-License-Identifier: MIT
OCTAVO_TASK(curve)
