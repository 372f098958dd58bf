// The state that a run carries from step to step besides its components (component.h): counters in
// state.json.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace octavo_train {

struct RunState {
  std::int64_t step = 0;            // optimizer steps done, including skipped ones
  std::uint64_t position = 0;       // the position at which the next batch begins (train/data/batches.h)
  std::int64_t samples = 0;         // number of samples in the current order
  std::uint64_t sampler_start = 0;  // the position at which the current order began
  std::int64_t units = 0;           // units of throughput, see Unit in train/task.h
  std::int64_t skipped = 0, skipped_in_a_row = 0;
  std::int64_t left_out = 0;         // samples that could not be read
  std::int64_t passes_left_out = 0;  // micro-batches in which no sample could be read
  std::int64_t evaluated = -1;       // the last evaluated step
  double loss_sum = 0;               // since the last line of metrics
  std::int64_t loss_count = 0;
  // Above 0 if the run has several ranks or was resumed from such a run. Otherwise 0: the settings contain
  // these values.
  std::int64_t ranks = 0, batches_per_step = 0;
  // The step from which training.max_steps counts. It is above 0 after a finished run was resumed with more
  // samples.
  std::int64_t first_step = 0;
};

// Convert the state to and from members of state.json. from_json() throws nlohmann::json::exception.
void to_json(nlohmann::ordered_json& json, const RunState& state);
void from_json(const nlohmann::ordered_json& json, RunState& state);

}  // namespace octavo_train
