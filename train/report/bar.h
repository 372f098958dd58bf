// A bar of parts that add up, as SVG: it needs no script.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace octavo::train {

struct BarPart {
  std::string name;
  std::string style;  // a class that sets --owner, the colour
  double bytes = 0;   // not above 0: left out
};

// `scale`: the bytes of its whole width. `label` is for readers who do not see it.
std::string stacked_bar(std::string_view label, std::span<const BarPart> parts, double scale);

}  // namespace octavo::train
