// `octavo bench offload`: times iterations of a synthetic model with its states on the device and in host
// memory.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"
#include "benchmarks/engine/offload.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

namespace octavo::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  octavo bench offload --device cuda
  octavo bench offload --device cuda --residence device,host --offload-gradients --clip
  octavo bench offload --device cuda --residence stream --trace offload.json

Each layer has one weight. Its forward pass copies on the device for --work-ms, its backward pass for
twice that and then makes the gradient. The step is that of the usual optimizer. Where states are in
host memory, the next forward pass waits for each layer's weight, not for all. Iterations follow one
another without waiting; "model ms" is the same without a step, so the difference is what the optimizer
costs. A pass of copies keeps the device's memory busy, where a model's pass keeps its arithmetic busy:
kernels of the step have less to hide behind here.

"weights" is a hash of all weights after the timed iterations. Residences must agree on it; where they
do not, the exit code is 1.

--trace writes two more iterations: a row for the model's passes, and one for each queue of the library
(copies up and down, kernels, work of the CPU). Open it in chrome://tracing or Perfetto, or draw it: benchmarks/draw_trace.py.
On a CPU threads stand for the device's queues, and nothing is saved: it shows that everything works.)";

void bench_offload(const OffloadFlags& flags) {
  const OffloadResult result = run_offload(flags);
  std::cout << (flags.json ? offload_json(result) : offload_table(result));
  if (const std::string errors = offload_errors(result); !errors.empty()) throw Failure(kExitFailure, errors);
}

}  // namespace

void add_bench_offload(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("offload", "Time a step whose states are in host memory");
  auto flags = std::make_shared<OffloadFlags>();
  add_offload_options(*command, *flags);
  command->footer(kFooter);
  command->callback([flags] { bench_offload(*flags); });
}

}  // namespace octavo::cli
