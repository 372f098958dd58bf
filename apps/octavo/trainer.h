// The commands of octavo-trainer, which run in a process that loads LibTorch, and what they share.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/trainer_commands.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/recognition/recognizer.h"

#include <string>

namespace octavo::cli {

void run_transcribe(const TranscribeRequest& request);
void run_evaluate(const EvaluateRequest& request);
void run_bench_speech(const SpeechBenchRequest& request);
void run_bench_transcribe(const TranscribeBenchRequest& request);

// Returns the options for the values of --device, --dtype and --checkpoint.
octavo_train::RecognizerOptions listener_options(const std::string& device, const std::string& dtype,
                                                 const std::string& checkpoint = {});

// Returns the model that --size and --head name. Throws a Failure if --size names no model.
octavo_train::SpeechModelSettings bench_model(const std::string& size, const std::string& head);

}  // namespace octavo::cli
