// Long recordings are heard in windows that overlap, and what was heard in them is put together by time: of
// an overlap, each window has the half that lies deeper in it, and the seam is where both heard the same
// label. So no word is lost or doubled. All in frames of the encoder. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/emission.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace octavo::train {

struct HearingWindow {
  std::int64_t first = 0, frames = 0;
  [[nodiscard]] std::int64_t end() const { return first + frames; }
  friend bool operator==(const HearingWindow&, const HearingWindow&) = default;
};

// As few windows as cover `frames` with `longest` frames each and `margin` more on both sides, which
// neighbours share: they overlap by at least 2 * margin. All have the same number of frames. A recording
// that fits into one window is one. REQUIRES: longest >= 1, margin >= 0.
std::vector<HearingWindow> cut_windows(std::int64_t frames, std::int64_t longest, std::int64_t margin);

struct WindowHeard {
  HearingWindow window;
  Transcript tokens;  // frames are from the window's first
};

// In the frames of the recording. `windows` are in the order of time; `begins_word` of a token: where two
// windows heard nothing in common, the seam is between words.
Transcript merge_windows(const std::vector<WindowHeard>& windows,
                         const std::function<bool(std::int64_t)>& begins_word);

}  // namespace octavo::train
