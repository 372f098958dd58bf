// Defines the command line of `octavo bench transcribe`. `octavo` parses it and execs octavo-trainer, which
// parses it again and does the work.
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

struct TranscribeBenchRequest {
  std::string size = "v3", head = "tdt";
  std::vector<std::string> from = {"memory"};
  std::vector<double> batch_seconds = {1200};
  std::int64_t clips = 1024;
  double seconds = 20;
  double tokens_per_second = 3.5;
  std::string dtype = "auto", device = "auto";
  int threads = 0;
  bool json = false;
};

// Adds the subcommand `transcribe` to bench.
void add_bench_transcribe(CLI::App& bench, const std::function<void(const TranscribeBenchRequest&)>& action);

}  // namespace octavo::cli
