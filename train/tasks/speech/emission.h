// What decoding finds: labels and their places in time. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace octavo::train {

// A label and where it was found. A frame here is one of the encoder's.
struct Emission {
  std::int64_t token = 0, frame = 0;
  std::int64_t duration = 0;  // frames by which it advanced; of CTC, frames that had it

  // The frame that it lasts to: it has at least its own.
  [[nodiscard]] std::int64_t end() const { return frame + std::max<std::int64_t>(duration, 1); }
  friend bool operator==(const Emission&, const Emission&) = default;
};
using Transcript = std::vector<Emission>;

}  // namespace octavo::train
