// Defines the command lines of `octavo train`, `octavo sample` and `octavo plan`; see trainer_commands.h.
// SPDX-License-Identifier: MIT
#include "apps/octavo/trainer_commands.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/options.h"

#include <CLI/CLI.hpp>

#include <limits>
#include <memory>

namespace octavo::cli {
namespace {

// Adds the config file and the overrides of its settings to a command. The file is the first positional
// argument, or the value of --config, which scripts of other trainers use. The returned function, to be
// called in the command's callback, sets `file` and `overrides` to the parsed values; `file` is empty if none
// was given. REQUIRES: `file` and `overrides` live until the command line is parsed.
std::function<void()> add_config_file(CLI::App& command, std::string& file,
                                      std::vector<std::string>& overrides) {
  const auto option = std::make_shared<std::string>();
  command.add_option("file", file, "The run's config: docs/config.md has every key")
      ->option_text(kRequiredText);
  command.add_option("overrides", overrides, "key=value: settings that replace those of the file");
  command.add_option("--config", *option, "The run's config, instead of the first word")->type_name("FILE");
  return [option, &file, &overrides] {
    if (option->empty()) return;
    // Without a preceding file argument, CLI11 has parsed the first override as the file.
    if (!file.empty() && file.find('=') == std::string::npos) {
      throw CLI::ValidationError("the config is given twice, as " + file + " and as --config " + *option +
                                 "; give one of them");
    }
    if (!file.empty()) overrides.insert(overrides.begin(), file);
    file = *option;
  };
}

}  // namespace

void add_train(CLI::App& app, const std::function<void(const TrainRequest&)>& action) {
  // The launchers of DeepSpeed and of older versions of torch put this option before all other arguments.
  // LOCAL_RANK in the environment has the same number.
  app.add_option("--local_rank,--local-rank", "Ignored: LOCAL_RANK in the environment counts")->group("");
  CLI::App* train = app.add_subcommand("train", "Train the model that a YAML file describes");
  auto request = std::make_shared<TrainRequest>();
  const auto settle_file = add_config_file(*train, request->file, request->overrides);
  auto* print =
      train->add_flag("--print-config", request->print_config,
                      "Show every key, its value, where it comes from and what it means; train nothing");
  auto* resume =
      train->add_flag("--resume", request->resume,
                      "Resume from the newest checkpoint although settings or data have changed since "
                      "(resume_from_checkpoint=allow_changes)");
  train
      ->add_option(
          "--dry-run", request->dry_run,
          "Do this many steps, the largest batches first, and an evaluation; write nothing; then print the "
          "memory and the time that the run needs")
      ->type_name("STEPS")
      ->check(CLI::Range(kFewestDrySteps, std::numeric_limits<std::int64_t>::max()))
      ->excludes(resume);
  train->footer(R"(For example:
  octavo train run.yaml                        train; resumes where it stopped
  octavo train run.yaml learning_rate=3e-4 output_dir=runs/second     a second run
  octavo train run.yaml max_steps=5000         the first run, made longer
  octavo train --config run.yaml               the same as octavo train run.yaml
  octavo train run.yaml --dry-run 20           what it will need, before it is started
Ctrl-C saves a checkpoint and exits; the same command resumes from it.)");
  train->callback([=] {
    settle_file();
    if (request->file.empty() && print->empty()) {
      throw Failure(kExitUsage, R"(train needs the YAML file of a run. For example:
  octavo init run.yaml                       writes one with comments
  octavo train run.yaml                      trains it; Ctrl-C saves, and the same command resumes
  make demo                                  trains a small model on the CPU (in a source tree)
See octavo train --help, docs/guides/train.md and docs/config.md.)");
    }
    if (request->resume) request->overrides.emplace_back("training.resume_from_checkpoint=allow_changes");
    action(*request);
  });
}

void add_sample(CLI::App& app, const std::function<void(const SampleRequest&)>& action) {
  CLI::App* sample = app.add_subcommand("sample", "Generate text with a trained model");
  auto request = std::make_shared<SampleRequest>();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  sample->add_option("run", request->run, "A run's folder, or a checkpoint's")->required();
  add_checkpoint(*sample, request->checkpoint);
  sample->add_option("--prompt", request->prompt, "Beginning of the text; a line break if not given");
  sample->add_option("--tokens", request->tokens, "Number of bytes to generate")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  sample->add_option("--top-k", request->top_k, "Choose among the k most likely bytes; 0: among all")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  sample
      ->add_option(
          "--temperature", request->temperature,
          "Temperature: below 1 the text is more certain, above 1 more varied; 0 always takes the most "
          "likely byte")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  sample->add_option("--seed", request->seed, "Seed of the random choices")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  sample->add_option("--device", request->device, "Device: auto, cpu, cuda or cuda:1")->capture_default_str();
  sample->footer(R"(For example:
  octavo sample runs/first --prompt "Once upon a time" --tokens 200 --top-k 3)");
  sample->callback([=] { action(*request); });
}

void add_plan(CLI::App& app, const std::function<void(const PlanCommand&)>& action) {
  CLI::App* plan = app.add_subcommand(
      "plan", "Predict what a run needs before its first step: memory, time, and whether it fits");
  auto request = std::make_shared<PlanCommand>();
  const auto settle_file = add_config_file(*plan, request->file, request->overrides);
  plan->add_option("--gpu", request->gpu,
                   "GPU by name (h100, rtx4090), by memory (24GB), or this: the one of this machine")
      ->capture_default_str();
  plan->add_option("--num-gpus", request->num_gpus, "Number of GPUs; training.num_gpus or 1 if not given")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}));
  plan->add_option("--gpus-per-host", request->gpus_per_host,
                   "GPUs of a host; those of other hosts are reached over the network")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}))
      ->capture_default_str();
  plan->add_option("--network", request->network, "Bandwidth of each GPU to other hosts, in GB/s each way")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  plan->add_option("--solve", request->solve,
                   "Find the largest batch, length or model that fits, or the fewest GPUs")
      ->check(CLI::IsMember({"batch", "length", "model", "gpus"}));
  plan->add_flag("--advise", request->advise, "List settings that save memory, and what each costs in time");
  plan->add_option("--html", request->html, "Write a page with bars and what-if controls to this file")
      ->type_name("FILE");
  plan->add_flag(
          "--measure", request->measure,
          "Run a few small steps on this machine's GPU instead, as is done where a model cannot be planned")
      ->excludes("--solve")
      ->excludes("--advise")
      ->excludes("--html");
  plan->add_flag("--json", request->json, "Print JSON on stdout, nothing else");
  plan->footer(R"(For example:
  octavo plan run.yaml --gpu 24GB              does it fit a card of 24 GB?
  octavo plan run.yaml --gpu h100 --num-gpus 8
  octavo plan run.yaml --gpu 24GB --solve batch    the largest batch that does
  octavo plan run.yaml --gpu 16GB --advise         what would make it fit)");
  plan->callback([=] {
    settle_file();
    if (request->file.empty()) throw CLI::RequiredError("file");
    action(*request);
  });
}

}  // namespace octavo::cli
