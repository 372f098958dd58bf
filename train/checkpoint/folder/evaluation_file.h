// evaluation.json of a checkpoint: the metrics of the evaluation at its step, and by which of them the run
// keeps its best. A checkpoint whose step was not evaluated has none. So each checkpoint carries its own
// numbers, and the best of a run is found from the folders that are there, whatever was killed or removed
// before.
//
//   {"metrics": [{"name": "loss", "value": 1.25, "better": "lower"}], "best_by": "loss", "only_best": false}
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/folder/metric.h"

#include <octavo/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

inline constexpr std::string_view kEvaluationName = "evaluation.json";

struct EvaluationRecord {
  std::vector<Metric> metrics;
  std::string best_by;     // the run's save_best; empty: not set
  bool only_best = false;  // saved for its metric alone: no step of save_steps and not the last
  friend bool operator==(const EvaluationRecord&, const EvaluationRecord&) = default;

  [[nodiscard]] const Metric* find(std::string_view name) const;  // nullptr: none
};

std::string evaluation_text(const EvaluationRecord& record);

// Of a checkpoint's folder. None: it was not evaluated. The error names the file.
Result<std::optional<EvaluationRecord>> read_evaluation(const std::string& checkpoint);

}  // namespace octavo::train
