// The starter configs that `octavo init` writes. The build generates their definitions from
// examples/train/starter_text.yaml and starter_speech.yaml.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace octavo::cli {

extern const std::string_view kStarterText;
extern const std::string_view kStarterSpeech;

}  // namespace octavo::cli
