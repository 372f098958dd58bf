// Adds `octavo bench`, with one subcommand for each kind of measurement.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"

#include <CLI/CLI.hpp>

namespace octavo::cli {

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  add_bench_optimizer(*bench);
  add_bench_offload(*bench);
  add_bench_shapes(*bench);
}

}  // namespace octavo::cli
