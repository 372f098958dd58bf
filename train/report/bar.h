// A stacked bar as SVG, which needs no script.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace octavo_train {

struct BarPart {
  std::string name;
  std::string style;  // a CSS class that sets --owner, the colour
  double bytes = 0;   // the part is omitted if this is not above 0
};

// Returns the SVG of a bar. `scale` is the number of bytes of its full width. `label` is for screen readers.
std::string stacked_bar(std::string_view label, std::span<const BarPart> parts, double scale);

}  // namespace octavo_train
