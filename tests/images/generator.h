// Images that are computed from their number: stripes of four directions, the classes, with noise.
// SPDX-License-Identifier: MIT
#pragma once

#include "images/settings.h"

#include <cstdint>
#include <span>

namespace octavo::train {

// Draws image `number` into `pixels`, row by row, and returns its class. REQUIRES: image_size^2 pixels.
std::int64_t draw_image(const ImageSettings& settings, std::uint64_t number, std::span<std::uint8_t> pixels);

}  // namespace octavo::train
