// The command lines of `octavo train` and `octavo sample`: read by `octavo`, which checks them and becomes
// octavo-trainer, and read again there, where the work is done.
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

inline constexpr std::int64_t kFewestDrySteps = 2;  // see train/run/dry_run.h

struct TrainRequest {
  std::string file;  // empty only with print_config
  std::vector<std::string> overrides;
  bool print_config = false;
  bool resume = false;       // adds an override
  std::int64_t dry_run = 0;  // steps; 0: a real run
};

struct SampleRequest {
  std::string run;         // its folder, or a checkpoint's
  std::string checkpoint;  // of the run: best, latest or a step; empty: latest
  std::string prompt = "\n";
  std::int64_t tokens = 200;
  std::int64_t top_k = 0;  // 0: all
  double temperature = 1.0;
  std::int64_t seed = 1337;
  std::string device = "auto";
};

void add_train(CLI::App& app, const std::function<void(const TrainRequest&)>& action);
void add_sample(CLI::App& app, const std::function<void(const SampleRequest&)>& action);

}  // namespace octavo::cli
