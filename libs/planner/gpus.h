// The catalogue of GPUs with the names that find_gpu() knows them by.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/plan.h>

namespace octavo::plan {

struct Card {
  Gpu gpu;
  std::string_view others;  // names besides the key and the name, each as plain() writes it
};
const std::vector<Card>& cards();

// Letters and digits alone, small, without the words that say only whose GPU it is: "rtx4090" of
// "NVIDIA GeForce RTX 4090".
std::string plain(std::string_view text);

}  // namespace octavo::plan
