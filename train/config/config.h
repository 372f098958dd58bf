// Loads and checks a run's config from a YAML file and `key=value` arguments, and records the origin of every
// value. The file overrides the defaults, and the command line overrides the file. The keys are defined by
// the table of the task that the config names (schema.h).
//
//   std::vector<std::string> words = {"learning_rate=3e-4", "data.block_size=1024"};
//   auto config = octavo_train::load("run.yaml", words);
//   if (!config.ok()) show(config.status().message());  // run.yaml:7:3: learning_rat: unknown key; …
//   use(config->settings.training.learning_rate);
//
// These functions neither throw nor print. They do not reject a config because files, devices or memory are
// missing, with one exception: the file that training.deepspeed names, because it is a part of the config.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// Describes where a value was given (Origin).
inline constexpr const char* kByRecipe = "recipe";  // Origin::via for a task's own defaults
struct Origin {
  enum class Level { standard, file, command_line };  // later levels override earlier levels
  Level level = Level::standard;
  std::string file = {};
  int line = 0;
  int column = 0;
  std::string via = {};  // the key as written, if it is another key: bf16 for compute_dtype

  // Return the place as text: default, run.yaml:7, command line (bf16). where() also has the column,
  // run.yaml:7:3, as at the start of an error message.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string where() const;
};

class Schema;

struct Config {
  Settings settings;
  const Schema* schema = nullptr;  // the keys of the settings' task
  std::vector<Origin> origins;     // one per key of `schema`
  std::vector<std::string> notes;  // messages for the user, such as values that have no effect

  // Return a key's origin, and its value as YAML. REQUIRES: `path` is a key's path, such as
  // training.learning_rate.
  [[nodiscard]] const Origin& origin(std::string_view path) const;
  [[nodiscard]] Origin& origin(std::string_view path);
  [[nodiscard]] std::string value(std::string_view path) const;
};

// Parses and checks a config. Errors use `name` as the name of the text.
Result<Config> parse(std::string_view text, std::string_view name,
                     std::span<const std::string> overrides = {});
// Reads a config file, then parses and checks it. If output_dir is `auto`, the folder is runs/NAME, where
// NAME is the file's name followed by `-KEY=VALUE` for each command-line setting that makes another
// experiment. So the same command resumes its run, and another command gets a separate folder. Relative paths
// are also looked for in the file's folder (paths.h).
Result<Config> load(const std::string& path, std::span<const std::string> overrides = {});

// Checks for values that a run needs but a config that is only printed may omit, such as data.train.
Status check_complete(const Config& config);

// Returns the complete config as YAML that parse() reads back to the same settings. It is saved with a run.
std::string to_yaml(const Settings& settings);

// Returns the keys whose values differ, each as "training.learning_rate: 0.001 -> 0.0003".
std::vector<std::string> differences(const Settings& then, const Settings& now);

// Returns only the differences that make another experiment. Batch keys differ only if the number of
// sequences per optimizer step does, however it is divided into micro-batches and among ranks.
std::vector<std::string> experiment_differences(const Settings& then, const Settings& now,
                                                std::int64_t ranks_then = 1, std::int64_t ranks_now = 1);

// Returns two lines for every key: its value and origin, then its meaning, indented by four blanks. `octavo
// train --print-config` wraps the lines at the terminal's width.
std::string to_table(const Config& config);

// Returns the text of docs/config.md.
std::string reference_page();

}  // namespace octavo_train
