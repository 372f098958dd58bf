// Defines the command line of `octavo evaluate`. `octavo` parses it and execs octavo-trainer, which parses it
// again and does the work.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

struct EvaluateRequest {
  std::string model;  // a run's folder, a checkpoint's folder, or a model's files
  std::vector<std::string> manifests;
  std::string checkpoint;
  std::string json;  // output path; empty: no file
  std::optional<std::int64_t> limit;
  std::int64_t worst = 10;
  std::optional<double> batch_seconds;
  int threads = 0;
  std::string device = "auto", dtype = "auto";
};

void add_evaluate(CLI::App& app, const std::function<void(const EvaluateRequest&)>& action);

// Throws a Failure if a manifest cannot be read or the file of --json could not be written, so that such
// errors appear before the work and not after it.
void check_evaluate(const EvaluateRequest& request);

}  // namespace octavo::cli
