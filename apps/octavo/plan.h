// Defines the command line of `octavo plan`. `octavo` parses and checks it and execs octavo-trainer, which
// parses it again.
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

struct PlanCommand {
  std::string file;
  std::vector<std::string> overrides;
  std::string gpu = "this";
  std::int64_t num_gpus = 0, gpus_per_host = 8;  // 0: use the config's number
  double network = 50;                           // GB/s per GPU to other hosts, in each direction
  std::string solve;                             // batch, length, model or gpus; empty: none
  bool advise = false;
  std::string html;  // path of the output page
  bool json = false;
  bool measure = false;  // measure steps with two small batches here instead of predicting
};

void add_plan(CLI::App& app, const std::function<void(const PlanCommand&)>& action);
}  // namespace octavo::cli
