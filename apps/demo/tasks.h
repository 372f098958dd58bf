// The tasks of octavo-demo, for OCTAVO_TASKS: the task `text` alone, so that the demo is built in less time.
// SPDX-License-Identifier: MIT
OCTAVO_TASK(text)
