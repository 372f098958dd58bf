// Names and units on the page, computed from the run's own records.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <string>

namespace octavo_train {

// Returns the name of a run's throughput, such as "Tokens per second".
std::string rate_name(const RunData& run);
// Returns the unit of the loss, such as "nats per token", where `of` is "nats" or "bits". Empty if the loss
// is not an entropy: the run's start record then has no unigram_entropy.
std::string entropy_unit(const RunData& run, const std::string& of);

struct Ending {
  std::string text;   // such as "Finished"
  std::string style;  // a CSS class: good, fair, bad, open
};
Ending ending_of(const RunData& run);

// Returns the subtitle of a run, such as "bdh · 25.3M parameters · cuda:0 NVIDIA H200".
std::string subtitle_of(const RunData& run);

}  // namespace octavo_train
