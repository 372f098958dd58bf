// The result of a run that ended without an error.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/folder/evaluation_file.h"

#include <cstdint>
#include <optional>
#include <string>

namespace octavo_train {

struct Outcome {
  std::int64_t step = 0;
  int signal = 0;                // the signal that ended the run early; 0: the run is finished
  bool started = true;           // false: the signal came before all ranks were there
  std::optional<Metric> metric;  // the first one of the last evaluation
  std::string checkpoint;        // the newest one
  std::string not_saved;         // why the newest checkpoint is not of the last step; empty: it is
  std::string report;            // the page's path
};

}  // namespace octavo_train
