// A metric of an evaluation: its name, its value and the direction in which it is better.
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <string>

namespace octavo_train {

enum class Better { lower, higher };

struct Metric {
  std::string name;
  double value = 0;
  Better better = Better::lower;
  friend bool operator==(const Metric&, const Metric&) = default;

  // A number is better than NaN, and NaN is never better.
  [[nodiscard]] bool better_than(double other) const {
    if (std::isnan(value) || std::isnan(other)) return !std::isnan(value);
    return better == Better::lower ? value < other : value > other;
  }
};

}  // namespace octavo_train
