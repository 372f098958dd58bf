// The examples of docs/guides/add_an_optimizer.md and add_a_format.md, for OCTAVO_EXTRA_LISTS.
// SPDX-License-Identifier: MIT
#pragma once

#include "linear6.h"
#include "triad.h"

namespace octavo {
using ExtraFormats = TypeList<Format<codecs::Linear6>>;
using ExtraFamilies = TypeList<formula::TriadFamily>;
}  // namespace octavo
