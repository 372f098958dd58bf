// What octavo-trainer measures.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::cli {

struct SpeechBenchRequest;
void run_bench_speech(const SpeechBenchRequest& request);

}  // namespace octavo::cli
