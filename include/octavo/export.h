/* Marks what the shared library exports; everything else is hidden.
 * SPDX-License-Identifier: MIT */
#ifndef OCTAVO_EXPORT_H_
#define OCTAVO_EXPORT_H_

#if defined(_WIN32)
#define OCTAVO_API
#else
#define OCTAVO_API __attribute__((visibility("default")))
#endif

#endif /* OCTAVO_EXPORT_H_ */
