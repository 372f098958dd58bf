// The tasks of `octavo train`. A new task is a folder here and a line in this list
// (docs/guides/add_a_task.md). The first task is the default.
//
//   OCTAVO_TASK(name)         declares a task by its name, which is also the name of its folder
//   OCTAVO_TASK_EXPORT(name)  declares that the task exports its models for other programs
//
// A source that includes this list defines the macros that it needs; here they are undefined again. A build
// may have other tasks: OCTAVO_TASKS then names a header with another list, as in the tests.
// SPDX-License-Identifier: MIT
#ifndef OCTAVO_TASK
#define OCTAVO_TASK(name)
#endif
#ifndef OCTAVO_TASK_EXPORT
#define OCTAVO_TASK_EXPORT(name)
#endif

#ifdef OCTAVO_TASKS
#include OCTAVO_TASKS
#else
OCTAVO_TASK(text)
OCTAVO_TASK(speech)
OCTAVO_TASK_EXPORT(speech)
#endif

#undef OCTAVO_TASK
#undef OCTAVO_TASK_EXPORT
