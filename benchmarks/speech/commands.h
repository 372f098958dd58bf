// The benchmarks of the speech task: `octavo bench loader`, `octavo bench speech` and `octavo bench
// transcribe`. The last two compute in octavo-trainer: `octavo` checks their command lines and execs it.
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

namespace octavo_train {
struct RecognizerOptions;
struct SpeechModelSettings;
}  // namespace octavo_train

namespace octavo::cli {

// A speech model with random weights.
struct BenchModel {
  std::string size = "v3", head = "tdt";
};

struct SpeechBenchRequest {
  std::vector<std::int64_t> clips = {32};
  double seconds = 20;
  std::int64_t tokens = 70;
  std::vector<std::string> checkpointing = {"off"};
  std::vector<std::string> optimizers = {std::string(octavo_train::recipe::kOptimizer)};
  BenchModel model;
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

struct TranscribeBenchRequest {
  BenchModel model;
  std::vector<std::string> from = {"memory"};
  std::vector<double> batch_seconds = {1200};
  std::int64_t clips = 1024;
  double seconds = 20;
  double tokens_per_second = 3.5;
  std::string dtype = "auto", device = "auto";
  int threads = 0;
  bool json = false;
};

// Each function adds its subcommand to bench. The last two call `action` with the parsed request.
void add_bench_loader(CLI::App& bench);
void add_bench_speech(CLI::App& bench, const std::function<void(const SpeechBenchRequest&)>& action);
void add_bench_transcribe(CLI::App& bench, const std::function<void(const TranscribeBenchRequest&)>& action);

// Measure and print; they need LibTorch. `options` has the device and the compute type of the request.
void run_bench_speech(const SpeechBenchRequest& request);
void bench_transcribe(const TranscribeBenchRequest& request, const octavo_train::RecognizerOptions& options);

// Returns the settings of the model. Throws a Failure if --size names no model.
octavo_train::SpeechModelSettings settings_of(const BenchModel& model);

// Returns the start of the line above a table: "speech model v3 (tdt, 627M parameters".
std::string model_text(const BenchModel& model, std::int64_t parameters);

// Returns the seconds of a clock that never goes back.
double now();

// Generates a signal that compresses about as well as speech: three tones that come and go, over quiet noise.
// Each number gives another signal.
std::vector<float> make_sound(std::uint64_t number, int rate, double seconds);

}  // namespace octavo::cli
