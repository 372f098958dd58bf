// The subcommands of `octavo bench` that need no LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

// Each function adds its subcommand, with the work as its callback. The app must outlive the parse.
void add_bench_optimizer(CLI::App& bench);
void add_bench_offload(CLI::App& bench);
void add_bench_shapes(CLI::App& bench);

}  // namespace octavo::cli
