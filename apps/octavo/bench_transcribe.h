// The command line of `octavo bench transcribe`: read by `octavo`, which becomes octavo-trainer, and read
// again there, where the work is done.
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

// `transcribe` among the subcommands of bench.
void add_bench_transcribe(CLI::App& bench, const std::function<void(const TranscribeBenchRequest&)>& action);

// What octavo-trainer reads as the same request.
std::vector<std::string> arguments_of(const TranscribeBenchRequest& request);

}  // namespace octavo::cli
