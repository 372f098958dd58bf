// Implements `octavo export`: writes the model of a run in the formats of other programs, as its task defines
// them. Does not need LibTorch.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"
#include "apps/octavo/subcommands.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "train/base/terminal_text.h"
#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/checkpoint_weights.h"
#include "train/config/config.h"

#include <CLI/CLI.hpp>

#include <array>
#include <iostream>
#include <memory>

namespace octavo::cli {
namespace {

constexpr std::array<std::string_view, 2> kNeeded = {"model.safetensors", "config.yaml"};

struct ExportFlags {
  std::string run;
  std::string target;
  std::string checkpoint;
  bool force = false;
};

// Throws if the target is a run's or a checkpoint's folder, because foreign files would corrupt a checkpoint,
// or if it exists and `force` is off.
void check_target(const std::string& target, bool force) {
  if (!octavo_train::path_exists(target)) return;
  if (octavo_train::path_exists(target + "/checksums.txt") || !octavo_train::list_checkpoints(target).empty())
    throw Failure(kExitUsage, target + ": is a run's folder or a checkpoint's; choose another name");
  if (!force)
    throw Failure(kExitUsage, target + ": is there already; choose another name, or --force replaces it");
}

void export_run(const ExportFlags& flags) {
  std::string target = flags.target;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  check_target(target, flags.force);
  const auto chosen = take(octavo_train::choose_checkpoint(flags.run, flags.checkpoint, kNeeded));
  for (const std::string& reason : chosen.skipped)
    std::cerr << "warning: skipped " << octavo_train::terminal_text(reason) << '\n';
  if (!chosen.why.empty()) std::cerr << chosen.path << ": " << chosen.why << '\n';
  const octavo_train::Config config = take(octavo_train::load(chosen.path + "/config.yaml"));
  const auto weights = take(octavo_train::CheckpointWeights::open(chosen.path));
  check(octavo_train::export_model({config.settings, chosen.path, weights.sources(), target}));
  std::cout << target << ": the weights of " << chosen.path << " in float32";
  if (weights.widened() > 0) {
    std::cout << "; " << weights.widened() << " tensors were bfloat16, " << weights.masters()
              << " of them with master bits";
  }
  std::cout << '\n';
}

}  // namespace

void add_export(CLI::App& app) {
  CLI::App* command = app.add_subcommand("export", "Write a trained model for other programs");
  auto flags = std::make_shared<ExportFlags>();
  command->add_option("run", flags->run, "A run's folder, or a checkpoint's")->type_name("RUN")->required();
  command
      ->add_option("target", flags->target,
                   "Of a speech model: NAME.nemo, or a folder for transformers (config.json, "
                   "model.safetensors)")
      ->type_name("TARGET")
      ->required();
  add_checkpoint(*command, flags->checkpoint);
  command->add_flag("--force", flags->force,
                    "Replace a file that is there; in a folder that is there, the files of the model");
  command->footer(R"(For example:
  octavo export runs/speech speech.nemo --checkpoint best
  octavo export runs/speech speech-hf)");
  command->callback([flags] { export_run(*flags); });
}

}  // namespace octavo::cli
