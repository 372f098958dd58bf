// Files that are embedded into the pages. embed.cmake generates their definitions.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace octavo_train {

struct Asset {
  std::string_view text;
  std::string_view sha256;  // in hexadecimal digits
};

extern const Asset chart_js;  // empty in a build without Chart.js
extern const Asset page_js;
extern const Asset page_css;
extern const Asset plan_js;
extern const Asset plan_sums_js;
extern const Asset plan_css;

}  // namespace octavo_train
