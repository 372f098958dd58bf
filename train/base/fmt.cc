// Compiles the functions of fmt's headers once; octavo_fmt_library in cmake/OctavoDependencies.cmake says
// why. The compiler keeps inline functions here although no code calls them.
// SPDX-License-Identifier: MIT
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>
