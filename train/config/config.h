// A run's config: read from a YAML file and `key=value` words, checked, with the origin of every value. The
// order of precedence is default, file, command line. Everything is derived from the table of the task that
// the config names (schema.h).
//
//   std::vector<std::string> words = {"learning_rate=3e-4", "data.block_size=1024"};
//   auto config = octavo::train::load("run.yaml", words);
//   if (!config.ok()) show(config.status().message());  // run.yaml:7:3: learning_rat: unknown key; …
//   use(config->settings.training.learning_rate);
//
// Nothing here throws or prints, or refuses a config because files, devices or memory are not there, but for
// the file that training.deepspeed names, which is a part of the config.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <octavo/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// Where a value was given.
inline constexpr const char* kByRecipe = "recipe";  // Origin::via of a task's own defaults
struct Origin {
  enum class Level { standard, file, command_line };  // later ones override
  Level level = Level::standard;
  std::string file = {};
  int line = 0;
  int column = 0;
  std::string via = {};  // the key that was written, where it is another one: bf16 for compute_dtype

  [[nodiscard]] std::string text() const;   // default, run.yaml:7, command line (bf16)
  [[nodiscard]] std::string place() const;  // the same with the column, as errors begin
};

class Schema;

struct Config {
  Settings settings;
  const Schema* schema = nullptr;  // the keys of the settings' task
  std::vector<Origin> origins;     // one per key of it
  std::vector<std::string> notes;  // what a user should know of values that have no effect

  // REQUIRES: `path` is a key's path, such as training.learning_rate.
  [[nodiscard]] const Origin& origin(std::string_view path) const;
};

// `name` is what errors call the text.
Result<Config> parse(std::string_view text, std::string_view name,
                     std::span<const std::string> overrides = {});
// Names the folder where output_dir is `auto`: runs/NAME after the file, with `-KEY=VALUE` for each setting
// of the command line that makes another experiment. So the same command goes on with its run, and another
// one has a run of its own. Relative paths are looked for beside the file, too: paths.h.
Result<Config> load(const std::string& path, std::span<const std::string> overrides = {});

// Checks what a run needs and a config that is only printed may leave out, such as data.train.
Status check_complete(const Config& config);

// The whole config as YAML that parse() reads to the same settings: what is saved with a run.
std::string to_yaml(const Settings& settings);

// The keys whose values differ, each as "training.learning_rate: 0.001 -> 0.0003".
std::vector<std::string> differences(const Settings& then, const Settings& now);

// Those of the differences that make another experiment. The sequences per step count, however they are
// divided into passes and among ranks.
std::vector<std::string> experiment_differences(const Settings& then, const Settings& now,
                                                std::int64_t ranks_then = 1, std::int64_t ranks_now = 1);

// Every key: a line with its value and origin, and below it a line with its meaning, which begins with four
// blanks. `octavo train --print-config` breaks the lines at the terminal's width.
std::string to_table(const Config& config);

// docs/config.md.
std::string reference_page();

}  // namespace octavo::train
