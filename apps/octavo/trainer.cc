// The program octavo-trainer. It runs `octavo train`, `octavo plan`, `octavo sample`, `octavo transcribe`,
// `octavo evaluate`, `octavo bench speech` and `octavo bench transcribe` in a process that loads LibTorch.
// SPDX-License-Identifier: MIT
#include "train/trainer.h"

#include "apps/octavo/terminal_console.h"
#include "apps/octavo/trainer.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "train/base/terminal_text.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/console/signals.h"
#include "train/device/device.h"
#include "train/distributed/agreement.h"
#include "train/distributed/launcher.h"
#include "train/distributed/rank_failure.h"
#include "train/model/model.h"
#include "train/run/dry_run.h"
#include "train/tasks/text/task.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace octavo::cli {
namespace {

void rehearse(const octavo_train::Config& config, std::int64_t steps, std::ostream& out,
              std::optional<octavo_train::RankFailure>& failure) {
  octavo_train::DryRun done;
  {
    TerminalConsole console;
    done = take(octavo_train::dry_run(config, steps, console, true, &failure));
  }
  if (done.signal != 0) {
    throw Failure(128 + done.signal, fmt::format("the dry run was stopped by {}; nothing was written",
                                                 octavo_train::signal_name(done.signal)));
  }
  for (const std::string& line : done.lines) out << line << '\n';
}

void run_rank(const octavo_train::Config& config, const TrainRequest& request, std::ostream& out,
              std::optional<octavo_train::RankFailure>& failure) {
  if (request.dry_run > 0) return rehearse(config, request.dry_run, out, failure);
  octavo_train::Outcome outcome;
  {
    TerminalConsole console;
    outcome = take(octavo_train::train(config, console, nullptr, &failure));
  }
  if (!outcome.started) {
    throw Failure(128 + outcome.signal,
                  fmt::format("stopped by {} before all ranks were there; nothing was trained",
                              octavo_train::signal_name(outcome.signal)));
  }
  if (outcome.signal != 0) {
    const bool latest = config.settings.training.resume_from_checkpoint.latest;
    const char* const how = latest ? "" : "with resume_from_checkpoint=true ";
    const std::string& saved = outcome.checkpoint;
    const std::string left =
        outcome.not_saved.empty()
            ? fmt::format("{} is saved, and the same command {}resumes from it", saved, how)
        : saved.empty() ? outcome.not_saved + ", and there is no checkpoint"
                        : fmt::format("{}; {} is older, and the same command {}resumes from it",
                                      outcome.not_saved, saved, how);
    throw Failure(128 + outcome.signal,
                  fmt::format("stopped by {} at step {}; {}", octavo_train::signal_name(outcome.signal),
                              outcome.step, left));
  }
  out << "step " << outcome.step << " is saved in " << outcome.checkpoint << "\nreport: " << outcome.report
      << '\n';
}

// Starts the command `words` once for each rank.
void run_ranks(const octavo_train::Config& config, const std::vector<std::string>& words) {
  check(octavo_train::can_start_ranks(config));
  octavo_train::LaunchOptions plan;
  plan.ranks = static_cast<int>(*config.settings.training.num_gpus);
  plan.command = words;
  const octavo_train::Launched done = take(octavo_train::launch(plan));
  if (done.code == 0) return;
  std::string left;  // for failures that no rank could print
  const auto checkpoints = octavo_train::list_checkpoints(config.settings.output_dir);
  if (!done.message.empty() && !checkpoints.empty())
    left = "; the newest checkpoint is " + checkpoints.front().path;
  throw Failure(done.code, done.message + left);
}

// Returns the failure that a rank other than 0 prints. Rank 0 prints the failure that ends a run, and
// octavo's launcher prints the failures it detects. Another rank prints only its own errors; rank 1 also
// prints that rank 0 has exited or hangs.
Failure printed_by_rank(const Failure& error, const octavo_train::RankInfo& rank_info,
                        const std::optional<octavo_train::RankFailure>& failure) {
  using FoundBy = octavo_train::RankFailure::FoundBy;
  const std::string what = error.what();
  const bool own = !failure || (failure->found_by == FoundBy::itself && failure->rank == rank_info.rank);
  const bool speaks_for_0 =
      failure && failure->found_by == FoundBy::others && failure->rank == 0 && rank_info.rank == 1;
  if (what.empty() || error.exit_code() > 128 || (!own && !speaks_for_0)) return {error.exit_code(), ""};
  return {error.exit_code(), speaks_for_0 ? what : octavo_train::rank_text(rank_info.rank) + ": " + what};
}

void run_training(const TrainRequest& request, const std::vector<std::string>& words) {
  const octavo_train::Config config = take(octavo_train::load(request.file, request.overrides));
  const octavo_train::RankInfo rank_info = take(octavo_train::rank_info_of(config));
  if (octavo_train::starts_ranks(config, rank_info)) return run_ranks(config, words);
  std::optional<octavo_train::RankFailure> failure;  // the failure that ended the run
  if (rank_info.leads()) return run_rank(config, request, std::cout, failure);
  std::ostream nowhere(nullptr);
  try {
    run_rank(config, request, nowhere, failure);
  } catch (const Failure& error) {
    throw printed_by_rank(error, rank_info, failure);
  }
}

void run_sampling(const SampleRequest& request) {
  const std::string words[] = {"training.device=" + request.device};
  const octavo_train::DeviceName device =
      take(octavo_train::parse("", "--device", words)).settings.training.device;
  const octavo_train::LoadedModel loaded =
      take(octavo_train::load_model(request.run, request.checkpoint, device));
  const octavo_train::ChosenCheckpoint& chosen = loaded.checkpoint;
  for (const std::string& reason : chosen.skipped)
    std::cerr << "warning: skipped " << octavo_train::terminal_text(reason) << '\n';
  if (!chosen.why.empty()) std::cerr << chosen.path << ": " << chosen.why << '\n';
  auto* const task = dynamic_cast<octavo_train::TextTask*>(loaded.task.get());
  if (task == nullptr) {
    throw Failure(kExitUsage, request.run + ": a model of the task " + loaded.settings.task +
                                  " writes no text; octavo report shows what it can");
  }
  octavo_train::SampleOptions options;
  options.tokens = request.tokens;
  options.top_k = request.top_k;
  options.temperature = request.temperature;
  options.seed = static_cast<std::uint64_t>(request.seed);
  // A terminal gets no control characters; a file or a pipe gets the raw bytes.
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  octavo_train::TerminalText shown;
  std::cout << (terminal ? octavo_train::terminal_text(request.prompt) : request.prompt);
  task->write(request.prompt, options, loaded.device, [&](char c) {
    std::cout << (terminal ? shown.put(c) : std::string(1, c)) << std::flush;
    return static_cast<bool>(std::cout);
  });
  std::cout << shown.end() << '\n';
}

// Rethrows LibTorch's errors without their backtraces.
template <class Action>
auto plainly(Action action) {
  return [action](const auto& request) {
    try {
      action(request);
    } catch (const c10::Error& error) {
      throw Failure(kExitFailure, "LibTorch: " + octavo_train::error_text(error));
    }
  };
}

void add_commands(CLI::App& app, const std::vector<std::string>& words) {
  add_train(app, [words](const TrainRequest& request) { run_training(request, words); });
  add_plan(app, plainly(run_plan));
  add_sample(app, plainly(run_sampling));
  add_transcribe(app, plainly(run_transcribe));
  add_evaluate(app, plainly(run_evaluate));
  CLI::App* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  add_bench_speech(*bench, plainly(run_bench_speech));
  add_bench_transcribe(*bench, plainly(run_bench_transcribe));
}

}  // namespace
}  // namespace octavo::cli

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  const auto rank_info =
      octavo_train::rank_from_environment([](const char* name) { return std::getenv(name); });
  if (rank_info.ok() && rank_info->grouped()) octavo_train::print_before_terminate(rank_info->rank);
  const int code =
      octavo::cli::run_command(argc, argv, [&](CLI::App& app) { octavo::cli::add_commands(app, words); });
  if (code == 0 || !rank_info.ok() || !rank_info->grouped()) return code;
  // Threads of a rank that ends because another rank failed may still wait for the failed rank.
  std::cout.flush();
  _exit(code);
}
