// SPDX-License-Identifier: MIT
#include "train/report/plan_page.h"

#include "train/report/page.h"

#include <nlohmann/json.hpp>

namespace octavo_train {

std::string plan_page(const nlohmann::ordered_json& data) {
  const bool titled = data.is_object() && data.contains("title") && data["title"].is_string();
  return html_page(titled ? data["title"].get<std::string>() : "A plan", data, {&plan_sums_js, &plan_js});
}

}  // namespace octavo_train
