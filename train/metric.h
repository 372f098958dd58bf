// What an evaluation gives, and which direction is better.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace octavo::train {

enum class Better { lower, higher };

struct Metric {
  std::string name;
  double value = 0;
  Better better = Better::lower;

  [[nodiscard]] bool better_than(double other) const {
    return better == Better::lower ? value < other : value > other;
  }
};

}  // namespace octavo::train
