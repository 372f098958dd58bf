// The command line of `octavo evaluate`: read by `octavo`, which becomes octavo-trainer, and read again
// there, where the work is done.
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
  std::string model;  // a run's folder, a checkpoint's, or the files of a model
  std::vector<std::string> manifests;
  std::string checkpoint;
  std::string json;  // a file; empty: none
  std::optional<std::int64_t> limit;
  std::int64_t worst = 10;
  std::optional<double> batch_seconds;
  int threads = 0;
  std::string device = "auto", dtype = "auto";
};

void add_evaluate(CLI::App& app, const std::function<void(const EvaluateRequest&)>& action);

// Throws a Failure where a manifest is not there, or the file of --json could not be written: before the
// work, and not after it.
void check_evaluate(const EvaluateRequest& request);

// What octavo-trainer reads as the same request.
std::vector<std::string> arguments_of(const EvaluateRequest& request);

}  // namespace octavo::cli
