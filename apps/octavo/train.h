// Defines the command lines of `octavo train` and `octavo sample`. `octavo` parses and checks them and execs
// octavo-trainer, which parses them again and does the work.
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
  std::string run;         // a run's folder, or a checkpoint's folder
  std::string checkpoint;  // best, latest or a step of the run; empty: latest
  std::string prompt = "\n";
  std::int64_t tokens = 200;
  std::int64_t top_k = 0;  // 0: sample from all tokens
  double temperature = 1.0;
  std::int64_t seed = 1337;
  std::string device = "auto";
};

void add_train(CLI::App& app, const std::function<void(const TrainRequest&)>& action);
void add_sample(CLI::App& app, const std::function<void(const SampleRequest&)>& action);

}  // namespace octavo::cli
