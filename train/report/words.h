// What the page calls things, in the words of the run's own records.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <string>

namespace octavo::train {

// Tokens per second
std::string rate_name(const RunData& run);
// "nats per token" of a run whose loss is an entropy, as its start says by naming that of the data; else
// empty.
std::string entropy_unit(const RunData& run, const std::string& of);

struct Ending {
  std::string text;   // Finished
  std::string style;  // a class: good, fair, bad, open
};
Ending ending_of(const RunData& run);

// bdh · 25.3M parameters · cuda:0 NVIDIA H200
std::string subtitle_of(const RunData& run);

}  // namespace octavo::train
