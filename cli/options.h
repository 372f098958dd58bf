// Adds options that several subcommands share.
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace octavo::cli {

// Adds options whose help shows a name for the type and the default.
struct AddOption {
  CLI::App& command;

  template <class T>
  CLI::Option* operator()(const char* flag, T& value, const char* type, const std::string& help) const {
    return command.add_option(flag, value, help)->type_name(type)->capture_default_str();
  }
};

inline void add_checkpoint(CLI::App& command, std::string& checkpoint) {
  command
      .add_option("--checkpoint", checkpoint,
                  "Checkpoint of a run: best (by save_best), latest (the default) or the number of a step")
      ->type_name("best|latest|STEP");
}

}  // namespace octavo::cli
