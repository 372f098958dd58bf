// Helpers for complete runs of the trainer on tiny models, many in one process: a config, the run, and its
// results.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/train/files_support.h"
#include "train/config/config.h"
#include "train/console/console.h"
#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// Records every line. `each` may react to it.
class Recorder : public Console {
 public:
  void progress(const std::string& line) override { add(line); }
  void note(const std::string& line) override { add(line); }

  std::string said;
  std::function<void(const std::string&)> each;

 private:
  void add(const std::string& line) {
    said += line + '\n';
    if (each) each(line);
  }
};

// A run of 12 steps with a model of 57k parameters, an evaluation every 6 steps and a checkpoint every 4.
class TinyRun {
 public:
  // The run has its own folder under `folder`, which also contains its output.
  TinyRun(const std::string& folder, const std::string& name);

  // Trains with these words after the config. Appends the output, and any error message, to `said`.
  Result<Outcome> train(const Words& words = {});
  // Train, and expect success, or an error whose message contains `part`.
  void finish(const Words& words = {});
  void fail(const Words& words, const std::string& part);

  [[nodiscard]] std::vector<Json> records(const std::string& kind = {}) const;
  [[nodiscard]] std::vector<std::int64_t> steps(const std::string& kind) const;
  [[nodiscard]] std::size_t lines() const;  // in metrics.jsonl
  [[nodiscard]] std::pair<std::string, std::string> bits(std::int64_t step) const;
  [[nodiscard]] Json state(std::int64_t step) const;
  [[nodiscard]] Json header(std::int64_t step, const std::string& file) const;  // a safetensors file's header
  [[nodiscard]] std::string checkpoint(std::int64_t step) const;
  [[nodiscard]] bool has(std::int64_t step) const;
  // Returns the fields of the log that depend on neither time nor memory.
  [[nodiscard]] std::vector<Json> curves() const;

  std::string out, yaml, said;
  std::function<void(const std::string&)> each;
};

// A child process, so that signals and limits affect only it. The destructor kills it if it still runs.
class Child {
 public:
  // Starts the process. Its exit code is the result of `work`.
  explicit Child(const std::function<int()>& work);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits until `ready` returns true. Returns false if the process ended before, or after three minutes.
  bool wait_until(const std::function<bool()>& ready);
  void send(int signal) const;
  int wait();  // returns its exit code, or 128 + the signal that ended it

 private:
  bool ended();
  pid_t pid_;
  int code_ = -1;
};

// Trains. Returns 0, 128 + the signal, or 1 with the message in OUT.error.
int exit_code(TinyRun& run, const Words& words);

// Returns a run that was not interrupted. It is made once; do not change it.
const TinyRun& whole_run();

// Returns the path of the text that all runs train on.
const std::string& text_file();

}  // namespace octavo_train
