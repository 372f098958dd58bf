// The tasks of this test binary, for OCTAVO_TASKS: text, and the example of docs/guides/add_a_task.md.
// SPDX-License-Identifier: MIT
OCTAVO_TASK(text)
OCTAVO_TASK(images)
