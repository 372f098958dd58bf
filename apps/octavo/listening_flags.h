// The flags that `octavo evaluate` and `octavo transcribe` share: which model listens, and on what.
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace octavo::cli {

inline void add_listening_model(CLI::App& command, std::string& model) {
  command
      .add_option("model", model,
                  "A run's folder, a checkpoint's, a .nemo file, a folder of transformers, or a name of the "
                  "hub that was downloaded")
      ->type_name("RUN")
      ->required();
}

inline void add_listening_checkpoint(CLI::App& command, std::string& checkpoint) {
  command
      .add_option("--checkpoint", checkpoint,
                  "Of a run: best (by save_best), latest, or the number of a step; latest if not given")
      ->type_name("best|latest|STEP");
}

inline void add_listening_machine(CLI::App& command, int& threads, std::string& device, std::string& dtype) {
  const auto option = [&](const char* flag, auto& value, const char* type, const char* help) {
    return command.add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
  option("--threads", threads, "N", "That read recordings; 0: as many as the machine has, up to 16")
      ->check(CLI::Range(0, 1024));
  option("--device", device, "NAME", "auto, cpu, cuda, cuda:1 or mps");
  option("--dtype", dtype, "NAME", "auto (bfloat16 on a GPU), bfloat16, float16 or float32")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16", "float32"}));
}

}  // namespace octavo::cli
