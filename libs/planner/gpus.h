// The catalogue of GPUs with the names that find_gpu() accepts.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/plan.h>

namespace octavo::plan {

struct Card {
  Gpu gpu;
  std::string_view others;  // names besides the key and the name, each in the form of plain()
};
const std::vector<Card>& cards();

// Returns the lower-case letters and digits of a name, without the words that only name the vendor: "rtx4090"
// for "NVIDIA GeForce RTX 4090".
std::string plain(std::string_view text);

}  // namespace octavo::plan
