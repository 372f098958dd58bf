// Defines the names and texts of evaluation metrics. Configs, metrics.jsonl and TensorBoard contain `wer` as
// a fraction. With a prefix, such as `val_wer`, it is the same metric under the name that other trainers use.
// Texts for users show `WER` in percent.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/numbers.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace octavo_train {

// The prefix of Lightning and NeMo, then the prefix of transformers.
inline constexpr std::array<std::string_view, 2> kMetricPrefixes = {"val_", "eval_"};

// Returns `wer` for `val_wer`.
constexpr std::string_view without_metric_prefix(std::string_view name) {
  for (const std::string_view prefix : kMetricPrefixes)
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

// Returns `val_wer`, the tag under which TensorBoard also shows the metric.
inline std::string known_metric_name(std::string_view name) {
  return std::string(kMetricPrefixes[0]) + std::string(name);
}

inline constexpr std::string_view kWordErrorRate = "wer";

// Returns `WER` for `wer`.
inline std::string metric_label(std::string_view name) {
  return name == kWordErrorRate ? "WER" : std::string(name);
}

// Returns 18.52% for the `wer` 0.1852, and 0.1852 for any other metric.
inline std::string metric_value(std::string_view name, std::optional<double> value) {
  if (name != kWordErrorRate) return fixed(value, 4);
  const std::string percent = fixed(value ? std::optional(100 * *value) : std::nullopt, 2);
  return percent == kUnknown ? percent : percent + "%";
}

// Returns "WER 18.52%".
inline std::string metric_text(std::string_view name, std::optional<double> value) {
  return metric_label(name) + " " + metric_value(name, value);
}

}  // namespace octavo_train
