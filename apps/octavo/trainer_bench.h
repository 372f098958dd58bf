// The benchmarks that run in octavo-trainer.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/config/model_settings.h"

#include <string>

namespace octavo::cli {

// Returns the model that --size and --head name. Throws a Failure if --size names no model.
octavo_train::SpeechModelSettings bench_model(const std::string& size, const std::string& head);

struct SpeechBenchRequest;
void run_bench_speech(const SpeechBenchRequest& request);

struct TranscribeBenchRequest;
void run_bench_transcribe(const TranscribeBenchRequest& request);

}  // namespace octavo::cli
