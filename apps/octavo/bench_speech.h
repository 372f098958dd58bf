// Defines the command line of `octavo bench speech`. `octavo` parses it and execs octavo-trainer, which
// parses it again and does the work.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/recipe.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

struct SpeechBenchRequest {
  std::vector<std::int64_t> clips = {32};
  double seconds = 20;
  std::int64_t tokens = 70;
  std::vector<std::string> checkpointing = {"off"};
  std::vector<std::string> optimizers = {std::string(octavo_train::recipe::kOptimizer)};
  std::string size = "v3", head = "tdt";
  std::string dtype = "bfloat16", master = "auto";
  std::string device = "auto";
  std::string fp8 = "off", fp8_select = "measure";
  std::string offload = "none";
  bool offload_gradients = false;
  std::int64_t accumulation = 1;
  std::int64_t steps = 10;
  std::int64_t total_clips = 5200000;
  bool json = false;
};

// Adds the subcommand `speech` to bench.
void add_bench_speech(CLI::App& bench, const std::function<void(const SpeechBenchRequest&)>& action);

}  // namespace octavo::cli
