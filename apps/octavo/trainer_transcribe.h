// Runs `octavo transcribe` in octavo-trainer.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/recognition/recognizer.h"

#include <string>

namespace octavo::cli {

// Returns the options for the values of --device, --dtype and --checkpoint.
octavo_train::RecognizerOptions listener_options(const std::string& device, const std::string& dtype,
                                                 const std::string& checkpoint = {});

struct TranscribeRequest;
void run_transcribe(const TranscribeRequest& request);

}  // namespace octavo::cli
