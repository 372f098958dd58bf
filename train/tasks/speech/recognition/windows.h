// Cuts long recordings into overlapping windows and merges the transcripts of the windows by time. Each
// window contributes the half of an overlap that is farther from its own edge. The seam is at a label that
// both windows recognized, so that no word is lost or doubled. All positions are in frames of the encoder.
// Does not use LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/recognition/transcription.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace octavo_train {

struct RecognitionWindow {
  std::int64_t first = 0, frames = 0;
  [[nodiscard]] std::int64_t end() const { return first + frames; }
  friend bool operator==(const RecognitionWindow&, const RecognitionWindow&) = default;
};

// Returns the smallest number of windows that cover `frames`. A window has up to `longest` frames and
// `margin` more on both sides, which it shares with its neighbors, so neighbors overlap by at least twice the
// margin. All windows have the same number of frames. A recording that fits into one window is not cut.
// REQUIRES: longest >= 1, margin >= 0.
std::vector<RecognitionWindow> cut_windows(std::int64_t frames, std::int64_t longest, std::int64_t margin);

struct RecognizedWindow {
  RecognitionWindow window;
  Transcript tokens;  // frames count from the window's first
};

// Merges the transcripts of windows, which are in the order of time, into one whose frames count from the
// start of the recording. `begins_word` returns true if a token begins a word: if two windows have no label
// in common, the seam is between words.
Transcript merge_windows(const std::vector<RecognizedWindow>& windows,
                         const std::function<bool(std::int64_t)>& begins_word);

}  // namespace octavo_train
