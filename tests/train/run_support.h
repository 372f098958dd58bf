// Whole runs of the trainer on tiny models, many in one process: a config, the run, and what it leaves
// behind.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"
#include "train/console/console.h"
#include "train/files_support.h"
#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace octavo::train {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// Keeps every line; `each` may act on it.
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

// 12 steps of a model of 57k parameters, an evaluation every 6 and a checkpoint every 4.
class TinyRun {
 public:
  // In a folder of its own under `folder`; the run's output is there too.
  TinyRun(const std::string& folder, const std::string& name);

  // With these words after the config. Adds to `said`, the error's message too.
  Result<Outcome> train(const Words& words = {});
  // The same, and expects that it succeeds, or that it fails with a message that has `part`.
  void finish(const Words& words = {});
  void fail(const Words& words, const std::string& part);

  [[nodiscard]] std::vector<Json> records(const std::string& kind = {}) const;
  [[nodiscard]] std::vector<std::int64_t> steps(const std::string& kind) const;
  [[nodiscard]] std::size_t lines() const;  // of metrics.jsonl
  [[nodiscard]] std::pair<std::string, std::string> bits(std::int64_t step) const;
  [[nodiscard]] Json state(std::int64_t step) const;
  [[nodiscard]] Json header(std::int64_t step, const std::string& file) const;  // of a safetensors file
  [[nodiscard]] std::string checkpoint(std::int64_t step) const;
  [[nodiscard]] bool has(std::int64_t step) const;
  // What depends on neither time nor memory.
  [[nodiscard]] std::vector<Json> curves() const;

  std::string out, yaml, said;
  std::function<void(const std::string&)> each;
};

// A child process, which signals and limits reach. It is killed where it is still there at the end.
class Child {
 public:
  // Its exit code is what `work` returns.
  explicit Child(const std::function<int()>& work);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits until `ready`; false where the process ended before, or three minutes have passed.
  bool wait_until(const std::function<bool()>& ready);
  void send(int signal) const;
  int wait();  // its exit code, or 128 + the signal that ended it

 private:
  bool ended();
  pid_t pid_;
  int code_ = -1;
};

// 0, 128 + the signal, or 1 and the message in OUT.error.
int exit_code(TinyRun& run, const Words& words);

// A run that nothing interrupted; made once. Do not change it.
const TinyRun& whole_run();

// The text that all runs train on.
const std::string& text_file();

}  // namespace octavo::train
