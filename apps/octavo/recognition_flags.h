// Defines the flags that `octavo evaluate` and `octavo transcribe` share: the model, its checkpoint, and the
// device.
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace octavo::cli {

inline void add_listening_model(CLI::App& command, std::string& model) {
  command
      .add_option("model", model,
                  "Folder of a run or a checkpoint, a .nemo file, a folder of transformers, or the name of a "
                  "downloaded model of the hub")
      ->type_name("RUN")
      ->required();
}

inline void add_listening_checkpoint(CLI::App& command, std::string& checkpoint) {
  command
      .add_option("--checkpoint", checkpoint,
                  "Checkpoint of a run: best (by save_best), latest (the default) or the number of a step")
      ->type_name("best|latest|STEP");
}

inline void add_listening_machine(CLI::App& command, int& threads, std::string& device, std::string& dtype) {
  const auto option = [&](const char* flag, auto& value, const char* type, const char* help) {
    return command.add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
  option("--threads", threads, "N", "Threads that read recordings; 0: one for each CPU, up to 16")
      ->check(CLI::Range(0, 1024));
  option("--device", device, "NAME", "Device: auto, cpu, cuda or cuda:1");
  option("--dtype", dtype, "NAME", "Compute type; auto: bfloat16 on a GPU, float32 elsewhere")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16", "float32"}));
}

}  // namespace octavo::cli
