// Pins pages, so that GPUs copy them at full speed. The CUDA backend or its stub defines these functions.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>

namespace octavo::offload {

// Pins the pages for every GPU of the process. The message of an error has only the reason.
Status pin_pages(void* data, std::int64_t bytes);
// REQUIRES: pin_pages has pinned the pages.
void unpin_pages(void* data);

}  // namespace octavo::offload
