// Defines the command line of `octavo transcribe`. `octavo` parses and checks it and execs octavo-trainer,
// which parses it again and does the work.
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
  std::string model;  // a run's folder, a checkpoint's folder, or a model's files
  std::vector<std::string> audio;
  std::string format = "text";
  std::string output;  // a folder; empty: stdout
  std::string checkpoint;
  std::string device = "auto", dtype = "auto";
  double window = 20, overlap = 2;
  double batch_seconds = 0;  // 0: use the listener's default
  int threads = 0;
  bool force = false;
};

void add_transcribe(CLI::App& app, const std::function<void(const TranscribeRequest&)>& action);

// Returns the transcript's path for each recording. Throws a Failure if two transcripts have the same path,
// or if a file exists and --force is not given. Returns an empty list without request.output.
std::vector<std::string> output_paths(const TranscribeRequest& request);

// Throws a Failure if the request cannot be served for any content of the files.
void check_transcribe(const TranscribeRequest& request);

}  // namespace octavo::cli
