// The command line of `octavo transcribe`: read by `octavo`, which checks it and becomes octavo-trainer, and
// read again there, where the work is done.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

struct TranscribeRequest {
  std::string model;  // a run's folder, a checkpoint's, or the files of a model
  std::vector<std::string> audio;
  std::string format = "text";
  std::string output;  // a folder; empty: stdout
  std::string checkpoint;
  std::string device = "auto", dtype = "auto";
  double window = 20, overlap = 2;
  double batch_seconds = 0;  // 0: as the listener says
  int threads = 0;
  bool force = false;
};

void add_transcribe(CLI::App& app, const std::function<void(const TranscribeRequest&)>& action);

// What octavo-trainer reads as the same request.
std::vector<std::string> arguments_of(const TranscribeRequest& request);

// Where the transcript of a recording goes. Throws a Failure where two would go to the same file, or a file
// is there and not to be replaced. Without request.output: empty.
std::vector<std::string> output_paths(const TranscribeRequest& request);

// Throws a Failure where the request cannot be served whatever the files are.
void check_transcribe(const TranscribeRequest& request);

}  // namespace octavo::cli
