// Implements `octavo bench optimizer`: for each optimizer and state format, checks the results, then times
// the step and compares it with the copy speed of the same device in the same run.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"
#include "benchmarks/engine/run.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

namespace octavo::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  octavo bench optimizer --state fp32,8bit --numel 2^24
  octavo bench optimizer --shape gpt2 --param-dtype bf16 --store bf16+16
  octavo bench optimizer --device cuda --shape flat,gpt2,parakeet --param-dtype bf16 --norm
  octavo bench optimizer --device cuda --numel 51200K --zeros 0,0.5,0.9,0.99 --param-dtype bf16
  octavo bench optimizer --optimizer all --state all --dry-run --json

Optimizers run with their defaults and a weight decay of 0.01. One that keeps nothing without
momentum runs with 0.9; --switch adds what else changes the moments.

Bytes. "B/param" is what the optimizer keeps for a parameter: codes and scales of all moments,
exactly as layout() gives them, small tensors (below 4096 elements: fp32 states) included.
"moved" is what a step must read and write: the parameter, its states with their scales and its
residual both ways, the gradient once (twice with --guard). So two moments with fp32 parameters
move 28 B in fp32 and 16.06 B in 8 bits (16.03 for those who count the scales one way). An
optimizer that measures a tensor before it updates it reads all of these once more. A format that
needs a second pass over the tensor (4bit-rank1) is counted as if it made one.

Time. Two warm-up steps (ten on a GPU, five of them by --settle), then --repeat steps: median and minimum; GB/s is moved
bytes over the median. The copy ceiling is the better of two copies, 1 GiB each side (less where
memory is short), bytes read and written both counted: on the CPU memcpy and a loop of streaming
stores, by as many threads; on a GPU cudaMemcpyAsync and a kernel. Each is the median of up to
five copies (ten on a GPU) right before and as many right after the row's steps; on a GPU the
best of the run counts for every row.

On a GPU a step is timed by events around it on a stream of its own, steps queued one behind the
other. "guard ms" is the same with the guard on, "clip ms" the norm of the gradients and a step
with the guard on that is clipped by it. "host us" is what one call costs the calling thread
(median of 200, nothing waits), "rebound us" what rebind_grads and the step after it do.

Rows. --zeros gives shares of rows that never have a gradient: theirs is exactly zero at every step,
and so are their moments (unless the optimizer adds its decay to the gradient). A row is what the first dimension of a tensor counts; flat has rows of 1024
elements; vectors of models have none. In gpt2-embedding 512 tokens of a step are drawn by Zipf's law,
in moe 24 experts with replacement, of which an eighth is never chosen; their steps before the timed
ones (--settle) leave some rows dense, some decayed and some zero. lora is the first step of
adapters, held: B is zero and therefore A's gradient too. A line above the table says which share of
all elements lies in rows with a gradient ("touched" and "ever_touched" with --json). All bytes
count as moved. A GPU is compared with the CPU on such rows, too.

Checksum (with --json). A 64-bit FNV-1a hash of params, residuals and states after three steps
on fixed tensors (1, 31, 255, 256, 257, 4095, 4097, 100003, 64x96, 1024x1x9 and 16x3x5x7
elements) with seeded data, whatever --shape says. It depends on optimizer, format, dtypes,
store, block size and --switch alone: implementations, threads and devices must agree on it. A GPU is
compared with the CPU in every byte first; where they differ the row is an error, is not timed,
and the exit code is 1.)";

void bench_optimizer(const BenchFlags& flags) {
  const BenchResult result = run_bench(flags);
  std::cout << (flags.json ? json_report(result.run, result.sections)
                           : table_report(result.run, result.sections));
  if (const std::string errors = errors_of(result.sections); !errors.empty())
    throw Failure(kExitFailure, errors);
}

}  // namespace

void add_bench_optimizer(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("optimizer", "Time the optimizer step for each state format");
  auto flags = std::make_shared<BenchFlags>();
  add_bench_options(*command, *flags);
  command->footer(kExamples);
  command->callback([flags] { bench_optimizer(*flags); });
}

}  // namespace octavo::cli
