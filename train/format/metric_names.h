// What other trainers call a metric of an evaluation. Here it is `wer`; with a prefix it is the same metric,
// in a config and as a tag of TensorBoard.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace octavo::train {

// Lightning's and NeMo's, then that of transformers.
inline constexpr std::array<std::string_view, 2> kMetricPrefixes = {"val_", "eval_"};

// `wer` for `val_wer`.
constexpr std::string_view without_metric_prefix(std::string_view name) {
  for (const std::string_view prefix : kMetricPrefixes)
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

// `val_wer`: the tag that TensorBoard has it under besides ours.
inline std::string known_metric_name(std::string_view name) {
  return std::string(kMetricPrefixes[0]) + std::string(name);
}

}  // namespace octavo::train
