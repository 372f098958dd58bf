// What decoding finds: labels and their places in time. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

namespace octavo::train {

// A label and where it was found. A frame here is one of the encoder's.
struct Emission {
  std::int64_t token = 0, frame = 0;
  std::int64_t duration = 0;  // frames by which it advanced; of CTC, frames that had it
  friend bool operator==(const Emission&, const Emission&) = default;
};
using Transcript = std::vector<Emission>;

}  // namespace octavo::train
