// SPDX-License-Identifier: MIT
#include "train.h"

#include <CLI/CLI.hpp>

#include <limits>
#include <memory>

namespace octavo::cli {

void add_train(CLI::App& app, const std::function<void(const TrainRequest&)>& action) {
  CLI::App* train = app.add_subcommand("train", "Train a model as a YAML file says");
  auto request = std::make_shared<TrainRequest>();
  auto* file = train->add_option("file", request->file, "The run's config: docs/config.md has every key");
  train->add_option("overrides", request->overrides, "key=value: instead of what the file says")
      ->type_name("key=value ...");
  auto* print =
      train->add_flag("--print-config", request->print_config,
                      "Show every key, its value, where it comes from and what it means; train nothing");
  auto* resume =
      train->add_flag("--resume", request->resume,
                      "Go on from the newest checkpoint although settings or data have changed since "
                      "(resume_from_checkpoint=changed)");
  train
      ->add_option(
          "--dry-run", request->dry_run,
          "Do so many steps, the largest batches first, and an evaluation; write nothing; then say how much "
          "memory the run needs and how long it takes")
      ->type_name("STEPS")
      ->check(CLI::Range(kFewestDrySteps, std::numeric_limits<std::int64_t>::max()))
      ->excludes(resume);
  train->footer(R"(For example:
  octavo train run.yaml                        train; goes on where it stopped
  octavo train run.yaml learning_rate=3e-4     another run, in a folder of its own
  octavo train run.yaml max_steps=5000         the first run, made longer
  octavo train run.yaml --dry-run 20           what it will need, before it is started
Ctrl-C saves a checkpoint and exits; the same command goes on from it.)");
  train->callback([=] {
    if (file->empty() && print->empty()) throw CLI::RequiredError("file");
    if (request->resume) request->overrides.emplace_back("training.resume_from_checkpoint=changed");
    action(*request);
  });
}

void add_sample(CLI::App& app, const std::function<void(const SampleRequest&)>& action) {
  CLI::App* sample = app.add_subcommand("sample", "Let a trained model write");
  auto request = std::make_shared<SampleRequest>();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  sample->add_option("run", request->run, "A run's folder, or a checkpoint's")->required();
  sample
      ->add_option("--checkpoint", request->checkpoint,
                   "Of a run: best (by save_best), latest, or the number of a step; latest if not given")
      ->type_name("best|latest|STEP");
  sample->add_option("--prompt", request->prompt, "What the text begins with; a line break if not given");
  sample->add_option("--tokens", request->tokens, "How many bytes to write")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  sample->add_option("--top-k", request->top_k, "Choose among the k most likely bytes; 0: among all")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  sample
      ->add_option("--temperature", request->temperature,
                   "Below 1 more certain, above more varied; 0: the most likely")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  sample->add_option("--seed", request->seed, "Of the choices")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  sample->add_option("--device", request->device, "auto, cpu, cuda, cuda:1 or mps")->capture_default_str();
  sample->callback([=] { action(*request); });
}

}  // namespace octavo::cli
