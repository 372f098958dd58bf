// What a step trains on: this rank's batches, and what the ranks have of them together.
//
// A step takes the next passes x ranks batches in a row; batch a * ranks + r is pass a of rank r. Before the
// first pass the ranks exchange what they have read: a pass must know how much of the step it is. What
// depends on a batch's place in its step depends on its number among the batches of all ranks, so the same
// batches on another number of ranks have the same numbers.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/run/run.h"

#include <cstdint>
#include <vector>

namespace octavo::train {

struct StepShare {
  std::vector<Batch> batches;         // this rank's, those with rows
  std::vector<std::int64_t> numbers;  // of each among the step's batches with rows, from 0
  double waited = 0;                  // seconds until they were read
  // Of all ranks.
  BatchTotals fed;
  std::int64_t most_passes = 0;  // that a rank does
  std::int64_t units = 0, left_out = 0, passes_left_out = 0;
  bool new_choices = false;  // rank 0 has some for the others: of products in FP8
  int signal = 0;            // that asks any rank to stop; without a group nobody looks for one here
};

// Reads this rank's batches of the next step; with a group, waits for the others to have read theirs. The
// state does not change.
StepShare take_step(Run& run);

// A signal that asks any rank to stop; 0: none. All ranks call it.
int signal_on_any(World& world);

}  // namespace octavo::train
