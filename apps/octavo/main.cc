// The program `octavo`.
// SPDX-License-Identifier: MIT
#include "apps/octavo/subcommands.h"
#include "benchmarks/engine/commands.h"
#include "cli/cli.h"
#include "cli/command.h"

#include <CLI/CLI.hpp>

namespace {

constexpr const char* kFooter = R"(Start here:
  octavo info                      what this machine offers
  octavo bench optimizer           time the step with 32-, 8- and 4-bit states
  octavo bench optimizer --help    all its options)";

}  // namespace

int main(int argc, char** argv) {
  return octavo::cli::run_command(argc, argv, [argv](CLI::App& app) {
    octavo::cli::add_info(app);
    CLI::App& bench = *app.add_subcommand("bench", "Measure speed");
    bench.require_subcommand(1);
    octavo::cli::add_bench_optimizer(bench);
    octavo::cli::add_bench_offload(bench);
    octavo::cli::add_bench_shapes(bench);
#ifdef OCTAVO_HAS_TRAINER
    octavo::cli::add_train_commands(app, argv);
#endif
    // A subcommand inherits the parent's footer at the time it is added, so the footer is set last.
    app.footer(kFooter + app.get_footer());
  });
}
