// The batches of a step: this rank's micro-batches, and the totals of all ranks.
//
// A step takes the next micro-batches x ranks batches in a row; batch a * ranks + r is micro-batch a of rank
// r. Before the first micro-batch the ranks exchange their counts, because the loss of a micro-batch is
// weighted by its share of the step. Random numbers depend on a batch's number among the batches of all
// ranks, so the same batches have the same numbers on any number of ranks.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/run/run.h"

#include <cstdint>
#include <vector>

namespace octavo_train {

struct StepBatches {
  std::vector<Batch> batches;         // this rank's batches that have rows
  std::vector<std::int64_t> numbers;  // the number of each among the step's batches with rows, from 0
  double waited = 0;                  // seconds until they were read
  // Totals of all ranks:
  BatchTotals fed;
  std::int64_t most_passes = 0;  // the most micro-batches of a rank
  std::int64_t units = 0, left_out = 0, passes_left_out = 0;
  bool new_choices = false;  // rank 0 has FP8 choices that the other ranks lack
  int signal = 0;            // stop signal received by any rank; always 0 without a process group
};

// Reads this rank's batches of the next step; in a process group, waits until the other ranks have read
// theirs. The state does not change.
StepBatches read_step_batches(Run& run);

// Returns the stop signal that any rank received; 0: none. All ranks call it.
int signal_on_any(ProcessGroup& world);

}  // namespace octavo_train
