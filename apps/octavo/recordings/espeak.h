// Synthesizes speech with espeak-ng, a separate program: every call starts it once.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <string>
#include <vector>

namespace octavo::recordings {

struct Reader {
  std::string voice;  // a value of `espeak-ng -v`: "en-us", "en-gb+f3"
  int words_per_minute = 175;
  int pitch = 50;  // 0 to 99
};

struct SpokenText {
  std::vector<float> samples;  // mono, full scale is 1
  int rate = 0;
};

// Synthesizes `text`. Thread-safe. Returns an error if espeak-ng is missing, does not know the voice, or
// produces no sound.
Result<SpokenText> speak(const std::string& text, const Reader& reader);

}  // namespace octavo::recordings
