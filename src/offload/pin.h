// Pages that GPUs copy at the full speed of their link. Defined by the CUDA backend, or its stub.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>

namespace octavo::offload {

// For every GPU of the process. An error where it cannot be: the message says why, and nothing else.
Status pin_pages(void* data, std::int64_t bytes);
// REQUIRES: pin_pages has pinned them.
void unpin_pages(void* data);

}  // namespace octavo::offload
