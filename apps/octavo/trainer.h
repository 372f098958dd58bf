// The commands of octavo-trainer, which run in a process that loads LibTorch, and what they share.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/trainer_commands.h"
#include "benchmarks/speech/commands.h"
#include "train/tasks/speech/recognition/recognizer.h"

#include <string>

namespace octavo::cli {

void run_plan(const PlanCommand& request);
void run_transcribe(const TranscribeRequest& request);
void run_evaluate(const EvaluateRequest& request);
void run_bench_transcribe(const TranscribeBenchRequest& request);

// Returns the options for the values of --device, --dtype and --checkpoint.
octavo_train::RecognizerOptions recognizer_options(const std::string& device, const std::string& dtype,
                                                   const std::string& checkpoint = {});

}  // namespace octavo::cli
