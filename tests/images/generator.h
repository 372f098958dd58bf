// Draws images, each computed from its number alone: noisy stripes. The class is the stripes' direction
// (four).
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/images/settings.h"

#include <cstdint>
#include <span>

namespace octavo_train {

// Draws image `number` into `pixels`, row by row, and returns its class. REQUIRES: `pixels` has image_size^2
// elements.
std::int64_t draw_image(const ImageSettings& settings, std::uint64_t number, std::span<std::uint8_t> pixels);

}  // namespace octavo_train
