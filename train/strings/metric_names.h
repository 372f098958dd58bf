// Names of the metrics of evaluations. Configs, metrics.jsonl and TensorBoard have `wer` as a fraction; with
// a prefix it is the same metric, under the name that other trainers give it. Readers see `WER` in percent.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/strings/numbers.h"

#include <array>
#include <optional>
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

inline constexpr std::string_view kWordErrorRate = "wer";

// `WER` for `wer`.
inline std::string metric_label(std::string_view name) {
  return name == kWordErrorRate ? "WER" : std::string(name);
}

// The title of a metric: "Evaluation loss", "WER".
inline std::string evaluation_label(std::string_view name) {
  return (name == kWordErrorRate ? "" : "Evaluation ") + metric_label(name);
}

// 18.52% for the `wer` 0.1852; 0.1852 for any other metric.
inline std::string metric_value(std::string_view name, std::optional<double> value) {
  if (name != kWordErrorRate) return fixed(value, 4);
  const std::string percent = fixed(value ? std::optional(100 * *value) : std::nullopt, 2);
  return percent == kUnknown ? percent : percent + "%";
}

// "WER 18.52%".
inline std::string metric_text(std::string_view name, std::optional<double> value) {
  return metric_label(name) + " " + metric_value(name, value);
}

}  // namespace octavo::train
