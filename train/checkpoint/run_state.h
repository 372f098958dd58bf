// What a run carries from step to step besides its parts (component.h): counters, in state.json.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace octavo::train {

struct RunState {
  std::int64_t step = 0;            // optimizer steps done, skipped ones included
  std::uint64_t position = 0;       // that the next batch begins at (train/data/batches.h)
  std::int64_t samples = 0;         // how many samples the order goes through
  std::uint64_t sampler_start = 0;  // the position at which it began with that number
  std::int64_t units = 0;           // of throughput: see Unit in task.h
  std::int64_t skipped = 0, skipped_in_a_row = 0;
  std::int64_t left_out = 0;         // samples that could not be read
  std::int64_t passes_left_out = 0;  // because none of their samples could
  std::int64_t evaluated = -1;       // the step that was evaluated last
  double loss_sum = 0;               // since the last line of metrics
  std::int64_t loss_count = 0;
  // Of a run of several ranks, or of one that goes on from such a run; else 0: the settings say it all.
  std::int64_t ranks = 0, batches_per_step = 0;
  // The step from which training.max_steps counts. Above 0 after a finished run was resumed with more
  // samples.
  std::int64_t first_step = 0;
};

// Members of state.json. from_json() throws nlohmann::json::exception.
void to_json(nlohmann::ordered_json& json, const RunState& state);
void from_json(const nlohmann::ordered_json& json, RunState& state);

}  // namespace octavo::train
