// The file evaluation.json of a checkpoint: the metrics of the evaluation at its step, and the metric by
// which the run ranks its best checkpoints. A checkpoint whose step was not evaluated has no such file.
// Because each checkpoint carries its own metrics, the best of a run is found from the existing folders, even
// after a crash or after checkpoints were removed.
//
//   {"metrics": [{"name": "loss", "value": 1.25, "better": "lower"}], "best_by": "loss", "only_best": false}
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

enum class Better { lower, higher };

// A metric of an evaluation.
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

inline constexpr std::string_view kEvaluationName = "evaluation.json";

struct EvaluationRecord {
  std::vector<Metric> metrics;
  std::string best_by;     // the run's save_best; empty: not set
  bool only_best = false;  // saved only for its metric: the step is neither due by save_steps nor the last
  friend bool operator==(const EvaluationRecord&, const EvaluationRecord&) = default;

  [[nodiscard]] const Metric* find(std::string_view name) const;  // nullptr if there is none
};

std::string evaluation_text(const EvaluationRecord& record);

// Reads the file from a checkpoint's folder. Returns nullopt if the step was not evaluated. The error names
// the file.
Result<std::optional<EvaluationRecord>> read_evaluation(const std::string& checkpoint);

}  // namespace octavo_train
