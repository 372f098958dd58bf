// SPDX-License-Identifier: MIT
#include "tests/images/generator.h"

#include "train/data/mix.h"

namespace octavo_train {

std::int64_t draw_image(const ImageSettings& settings, std::uint64_t number, std::span<std::uint8_t> pixels) {
  const std::uint64_t key =
      mix(mix(static_cast<std::uint64_t>(settings.generator_seed) + kGoldenGamma) + number);
  auto random = [key, n = std::uint64_t{0}](std::uint64_t below) mutable {
    return static_cast<std::int64_t>(mix(key + ++n * kGoldenGamma) % below);
  };
  const std::int64_t size = settings.image_size, label = random(static_cast<std::uint64_t>(settings.classes));
  const std::int64_t period = 4 + random(3), phase = random(8);
  for (std::int64_t y = 0; y < size; ++y) {
    for (std::int64_t x = 0; x < size; ++x) {
      const std::int64_t along = label == 0 ? x : label == 1 ? y : label == 2 ? x + y : x + size - y;
      const double stripe = (along + phase) % period < period / 2 ? 255 : 0;
      const auto noise = static_cast<double>(random(256));
      pixels[static_cast<std::size_t>(y * size + x)] =
          static_cast<std::uint8_t>(stripe * (1 - settings.noise) + noise * settings.noise);
    }
  }
  return label;
}

}  // namespace octavo_train
