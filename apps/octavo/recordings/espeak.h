// Texts read aloud by espeak-ng, which is a program of its own: every call starts it once.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <string>
#include <vector>

namespace octavo::recordings {

struct Reader {
  std::string voice;  // as `espeak-ng -v` has it: "en-us", "en-gb+f3"
  int words_per_minute = 175;
  int pitch = 50;  // 0 to 99
};

struct SpokenText {
  std::vector<float> samples;  // mono, full scale is 1
  int rate = 0;
};

// May be called from any number of threads. An error where espeak-ng is missing, does not know the voice, or
// has nothing to say.
Result<SpokenText> speak(const std::string& text, const Reader& reader);

}  // namespace octavo::recordings
