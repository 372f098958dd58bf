// Defines the command lines of the commands that octavo-trainer runs. `octavo` parses and checks them and
// execs octavo-trainer, which parses them again and does the work. Each add function adds a subcommand that
// calls `action` with the parsed request.
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

struct TranscribeRequest {
  std::string model;  // a run's folder, a checkpoint's folder, or a model's files
  std::vector<std::string> audio;
  std::string format = "text";
  std::string output;  // a folder; empty: stdout
  std::string checkpoint;
  std::string device = "auto", dtype = "auto";
  double window = 20, overlap = 2;
  double batch_seconds = 0;  // 0: use the recognizer's default
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
