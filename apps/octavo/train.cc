// SPDX-License-Identifier: MIT
#include "apps/octavo/train.h"

#include "apps/octavo/config_file.h"

#include <CLI/CLI.hpp>

#include <limits>
#include <memory>

namespace octavo::cli {

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
                      "(resume_from_checkpoint=changed)");
  train
      ->add_option(
          "--dry-run", request->dry_run,
          "Do this many steps, the largest batches first, and an evaluation; write nothing; then print the "
          "memory and the time that the run needs")
      ->type_name("STEPS")
      ->check(CLI::Range(kFewestDrySteps, std::numeric_limits<std::int64_t>::max()))
      ->excludes(resume);
  train->footer(R"(For example:
  octavo train run.yaml                        train; goes on where it stopped
  octavo train run.yaml learning_rate=3e-4     another run, in a folder of its own
  octavo train run.yaml max_steps=5000         the first run, made longer
  octavo train --config run.yaml               the same as octavo train run.yaml
  octavo train run.yaml --dry-run 20           what it will need, before it is started
Ctrl-C saves a checkpoint and exits; the same command goes on from it.)");
  train->callback([=] {
    settle_file();
    if (request->file.empty() && print->empty()) throw CLI::RequiredError("file");
    if (request->resume) request->overrides.emplace_back("training.resume_from_checkpoint=changed");
    action(*request);
  });
}

void add_sample(CLI::App& app, const std::function<void(const SampleRequest&)>& action) {
  CLI::App* sample = app.add_subcommand("sample", "Generate text with a trained model");
  auto request = std::make_shared<SampleRequest>();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  sample->add_option("run", request->run, "A run's folder, or a checkpoint's")->required();
  sample
      ->add_option("--checkpoint", request->checkpoint,
                   "Checkpoint of a run: best (by save_best), latest (the default) or the number of a step")
      ->type_name("best|latest|STEP");
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
  sample->callback([=] { action(*request); });
}

}  // namespace octavo::cli
