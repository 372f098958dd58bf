// Adds the trainer's commands; no_train_commands.cc replaces this file in a build without the trainer.
// Training, sampling and the benchmark of a complete step need LibTorch, which takes a second to load. This
// process only checks their command lines and then execs octavo-trainer.
// SPDX-License-Identifier: MIT
#include "apps/octavo/bench_speech.h"
#include "apps/octavo/bench_transcribe.h"
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/table.h"
#include "apps/octavo/evaluate.h"
#include "apps/octavo/plan.h"
#include "apps/octavo/train.h"
#include "apps/octavo/trainer_program.h"
#include "apps/octavo/transcribe.h"
#include "train/config/config.h"
#include "train/config/environment.h"

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <system_error>
#include <tuple>

namespace octavo::cli {
namespace {

// MKL, which LibTorch may load, aborts the process if the working directory was removed.
void check_working_directory() {
  std::error_code bad;
  std::ignore = std::filesystem::current_path(bad);
  if (bad)
    throw Failure(kExitFailure, "the working directory cannot be found (" + bad.message() +
                                    "): it may have been removed; cd to a directory that exists");
}

[[noreturn]] void become_trainer(std::vector<std::string> arguments) {
  const TrainerProgram trainer = find_trainer();
  if (!trainer.problem.empty()) throw Failure(kExitFailure, "the trainer cannot run: " + trainer.problem);
  check_working_directory();
  prefer_given_libtorch();
  octavo_train::set_trainer_allocator();
  octavo_train::set_trainer_wait_policy();
  const std::string& program = trainer.path;
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv;
  for (std::string& each : arguments) argv.push_back(each.data());
  argv.push_back(nullptr);
  std::cout.flush();
  execv(program.c_str(), argv.data());
  throw Failure(kExitFailure, program + " cannot be started: " + std::strerror(errno));
}

void train(const TrainRequest& request) {
  auto config = request.file.empty() ? octavo_train::parse("", "defaults", request.overrides)
                                     : octavo_train::load(request.file, request.overrides);
  check(config.status());
  if (request.print_config) {
    std::istringstream table(octavo_train::to_table(*config));
    for (std::string line; std::getline(table, line);)
      std::cout << wrapped(line, output_width(), /*indent=*/4) << '\n';
    for (const std::string& note : config->notes)
      std::cout << wrapped("note: " + note, output_width(), /*indent=*/4) << '\n';
    return;
  }
  check(octavo_train::check_complete(*config));
  std::vector<std::string> arguments = {"train", request.file};
  arguments.insert(arguments.end(), request.overrides.begin(), request.overrides.end());
  if (request.dry_run > 0) arguments.push_back("--dry-run=" + std::to_string(request.dry_run));
  become_trainer(std::move(arguments));
}

void plan(const PlanCommand& request) {
  const auto config = octavo_train::load(request.file, request.overrides);
  check(config.status());
  check(octavo_train::check_complete(*config));
  become_trainer(arguments_of(request));
}

void sample(const SampleRequest& request) {
  if (request.prompt.empty()) throw Failure(kExitUsage, "--prompt: got nothing, expected at least one byte");
  std::vector<std::string> arguments = {"sample",
                                        "--prompt=" + request.prompt,
                                        "--tokens=" + std::to_string(request.tokens),
                                        "--top-k=" + std::to_string(request.top_k),
                                        "--temperature=" + exact(request.temperature),
                                        "--seed=" + std::to_string(request.seed),
                                        "--device=" + request.device,
                                        request.run};
  if (!request.checkpoint.empty()) arguments.push_back("--checkpoint=" + request.checkpoint);
  become_trainer(std::move(arguments));
}

}  // namespace

void add_train_commands(CLI::App& app) {
  add_bench_loader(*app.get_subcommand("bench"));
  add_bench_speech(*app.get_subcommand("bench"),
                   [](const SpeechBenchRequest& request) { become_trainer(arguments_of(request)); });
  add_bench_transcribe(*app.get_subcommand("bench"),
                       [](const TranscribeBenchRequest& request) { become_trainer(arguments_of(request)); });
  // The launchers of DeepSpeed and of older versions of torch put this option before all other arguments.
  // LOCAL_RANK in the environment has the same number.
  app.add_option("--local_rank,--local-rank", "Ignored: LOCAL_RANK in the environment counts")->group("");
  add_train(app, train);
  add_plan(app, plan);
  add_sample(app, sample);
  add_transcribe(app, [](const TranscribeRequest& request) {
    check_transcribe(request);
    become_trainer(arguments_of(request));
  });
  add_evaluate(app, [](const EvaluateRequest& request) {
    check_evaluate(request);
    become_trainer(arguments_of(request));
  });
  add_export(app);
  add_report(app);
  add_data(app);
  app.footer(R"(
  octavo plan run.yaml             what a run needs, before it is started; docs/guides/plan.md
  octavo train run.yaml            train a model; docs/guides/train.md
  octavo sample RUN                generate text with it
  octavo transcribe RUN FILE...    transcribe recordings with it
  octavo evaluate RUN MANIFEST     its word error rate
  octavo export RUN TARGET         its model for other programs
  octavo report RUN [RUN...]       an HTML page about a run, or several side by side
  octavo data make-text FILE       a text to try it on
  octavo data check MANIFEST       what is wrong with recordings
  octavo data make-speech FOLDER   recordings to try it on
  octavo bench speech              where the time and memory of a speech model's step go
  octavo bench loader              how many clips a second threads decode for it
  octavo bench transcribe          how fast a speech model transcribes)");
}

}  // namespace octavo::cli
