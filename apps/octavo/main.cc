// The program `octavo`.
// SPDX-License-Identifier: MIT
#include "apps/octavo/subcommands.h"
#include "benchmarks/engine/commands.h"
#include "cli/cli.h"
#include "cli/command.h"

#include <CLI/CLI.hpp>

namespace {

constexpr const char* kFooter =
    "octavo SUBCOMMAND --help has all options and more examples; docs/README.md lists the guides.";

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
    // A subcommand inherits the parent's footer at the time it is added, so footers are set last.
    app.get_subcommand("info")->group("This machine");
    bench.group("This machine");
    bench.footer(
        "For example:\n  octavo bench optimizer --shape gpt2     time the step with 32-, 8- and 4-bit "
        "states");
    app.footer(kFooter);
  });
}
