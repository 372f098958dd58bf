// The output of decoding: labels and their positions in time. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace octavo_train {

// A decoded label and its position. Frames are those of the encoder's output.
struct Emission {
  std::int64_t token = 0, frame = 0;
  std::int64_t duration = 0;  // transducer: frames that the label advances; CTC: frames with this label

  // Returns the first frame after the label. A label lasts at least one frame.
  [[nodiscard]] std::int64_t end() const { return frame + std::max<std::int64_t>(duration, 1); }
  friend bool operator==(const Emission&, const Emission&) = default;
};
using Transcript = std::vector<Emission>;

}  // namespace octavo_train
