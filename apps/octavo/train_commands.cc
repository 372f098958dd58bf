// Adds the trainer's commands. Training, sampling and the benchmark of a complete step need LibTorch, which
// takes a second to load. This process only checks their command lines and then execs octavo-trainer.
// SPDX-License-Identifier: MIT
#include "apps/octavo/subcommands.h"
#include "apps/octavo/trainer_commands.h"
#include "apps/octavo/trainer_program.h"
#include "benchmarks/speech/commands.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "train/config/config.h"
#include "train/config/environment.h"

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
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

// Execs octavo-trainer with this process's arguments, which it parses again. An error ends with
// `alternative`.
[[noreturn]] void become_trainer(char** argv, const std::string& alternative = {}) {
  TrainerProgram trainer = find_trainer();
  if (!trainer.problem.empty())
    throw Failure(kExitFailure, "the trainer cannot run: " + trainer.problem + alternative);
  check_working_directory();
  prefer_given_libtorch();
  octavo_train::set_trainer_allocator();
  octavo_train::set_trainer_wait_policy();
  std::cout.flush();
  argv[0] = trainer.path.data();
  execv(argv[0], argv);
  throw Failure(kExitFailure, trainer.path + " cannot be started: " + std::strerror(errno));
}

// Prints the config if --print-config is given, and checks it otherwise. Returns whether to train.
bool check_train(const TrainRequest& request) {
  auto config = request.file.empty() ? octavo_train::parse("", "defaults", request.overrides)
                                     : octavo_train::load(request.file, request.overrides);
  check(config.status());
  if (!request.print_config) {
    check(octavo_train::check_complete(*config));
    return true;
  }
  std::istringstream table(octavo_train::to_table(*config));
  for (std::string line; std::getline(table, line);)
    std::cout << wrapped(line, output_width(), /*indent=*/4) << '\n';
  for (const std::string& note : config->notes)
    std::cout << wrapped("note: " + note, output_width(), /*indent=*/4) << '\n';
  return false;
}

}  // namespace

void add_train_commands(CLI::App& app, char** argv) {
  const auto start = [argv](const auto&) { become_trainer(argv); };
  CLI::App& bench = *app.get_subcommand("bench");
  add_bench_loader(bench);
  add_bench_speech(bench, start);
  add_bench_transcribe(bench, start);
  add_init(app);
  add_train(app, [start](const TrainRequest& request) {
    if (check_train(request)) start(request);
  });
  add_plan(app, [argv](const PlanCommand& request) {
    check(octavo_train::check_complete(take(octavo_train::load(request.file, request.overrides))));
    become_trainer(argv,
                   ". Without the trainer, octavo.plan(model, ...) in Python predicts a model of your own");
  });
  add_sample(app, [start](const SampleRequest& request) {
    if (request.prompt.empty())
      throw Failure(kExitUsage, "--prompt: got nothing, expected at least one byte");
    start(request);
  });
  add_transcribe(app, [start](const TranscribeRequest& request) {
    check_transcribe(request);
    start(request);
  });
  add_evaluate(app, [start](const EvaluateRequest& request) {
    check_evaluate(request);
    start(request);
  });
  add_export(app);
  add_report(app);
  add_data(app);
  const auto group = [&app](const char* title, std::initializer_list<const char*> names) {
    for (const char* name : names) app.get_subcommand(name)->group(title);
  };
  group("Train", {"init", "train", "plan"});
  group("Use a trained model", {"sample", "transcribe", "evaluate", "export"});
  group("Data and reports", {"data", "report"});
}

}  // namespace octavo::cli
