/* The one place that holds the version; CMake reads it from here.
 * SPDX-License-Identifier: MIT */
#ifndef OCTAVO_VERSION_H_
#define OCTAVO_VERSION_H_

#define OCTAVO_VERSION_MAJOR 0
#define OCTAVO_VERSION_MINOR 1
#define OCTAVO_VERSION_PATCH 0

/* Rises whenever a struct or function of octavo.h changes. */
#define OCTAVO_ABI_VERSION 3

#endif /* OCTAVO_VERSION_H_ */
