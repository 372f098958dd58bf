// Formats the results of `octavo bench speech` as text tables and as JSON. Does not need LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench_speech.h"
#include "train/tasks/speech/model/step_profile.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo::cli {

struct SpeechBenchRow {
  std::string optimizer, checkpointing;
  std::int64_t clips = 0;
  std::optional<octavo_train::SpeechMeasure> measure;
  std::string error;  // set if there is no measure
};

struct SpeechBench {
  const SpeechBenchRequest& request;
  std::string device;
  std::int64_t parameters = 0;
  std::string weights;  // dtype of the weights
  std::vector<SpeechBenchRow> rows;
};

std::string speech_tables(const SpeechBench& bench);
std::string speech_json(const SpeechBench& bench);

}  // namespace octavo::cli
