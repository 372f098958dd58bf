// `octavo bench optimizer`: for each optimizer and state format, first a checksum of what it computes, then
// its time, beside the copy speed of the same machine in the same run.
// SPDX-License-Identifier: MIT
#include "bench_report.h"
#include "cli.h"
#include "copy_speed.h"
#include "table.h"

#include <octavo/backend.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <iostream>
#include <memory>
#include <utility>

namespace octavo::cli {
namespace {

constexpr std::int64_t kDefaultNumel = std::int64_t{1} << 26;
constexpr int kWarmUps = 2;
constexpr int kMaxThreads = 1024;
constexpr int kMaxCopies = 5;  // before and after each row

constexpr const char* kFooter = R"(Examples:
  octavo bench optimizer --state fp32,8bit --numel 2^24
  octavo bench optimizer --shape gpt2 --param-dtype bf16 --store bf16+16
  octavo bench optimizer --optimizer all --state all --dry-run --json

Bytes. "B/param" is what the optimizer keeps for a parameter: codes and scales of all moments,
exactly as layout() gives them, small tensors (below 4096 elements: fp32 states) included.
"moved" is what a step must read and write: the parameter, its states with their scales and its
residual both ways, the gradient once (twice with --guard). So AdamW with fp32 parameters moves
28 B with fp32 states and 16.06 B with 8-bit ones (16.03 for those who count the scales one way).
A format that needs a second pass over the tensor (4bit-rank1) is counted as if it made one.

Time. Two warm-up steps, then --repeat steps: median and minimum; GB/s is moved bytes over the
median. The copy ceiling is the better of memcpy and a loop of streaming stores, by as many
threads, 1 GiB each side (less where memory is short), bytes read and written both counted: each
the median of up to five copies right before and five right after the row's steps.

Checksum (with --json). A 64-bit FNV-1a hash of params, residuals and states after three steps
on fixed tensors (1, 31, 255, 256, 257, 4095, 4097, 100003, 64x96, 1024x1x9 and 16x3x5x7
elements) with seeded data, whatever --shape says. It depends on optimizer, format, dtypes,
store and block size alone: implementations, threads and devices must agree on it.)";

struct Flags {
  std::string shape = "flat", numel, states = "fp32,8bit,4bit,fp8", optimizers = "adamw";
  std::string param_dtype = "fp32", grad_dtype, store = "nearest", device = "cpu";
  std::int64_t block_size = 0;
  int threads = 0, repeat = 10;
  bool numel_given = false, amsgrad = false, guard = false, json = false, dry_run = false;
};

// A comma-separated list of names, or all of them.
template <class T>
std::vector<T> parse_list(const std::string& flag, const std::string& text, std::span<const T> all,
                          Result<T> (*parse)(std::string_view)) {
  if (text == "all") return {all.begin(), all.end()};
  std::vector<T> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(take(parse(std::string_view(text).substr(at, comma - at)), flag));
    at = comma + 1;
  }
  return out;
}

// The library's names, and those that frameworks use.
DType parse_element(const std::string& flag, const std::string& text) {
  const auto is = [&](auto... names) { return ((text == names) || ...); };
  if (is("fp32", "f32", "float32", "float")) return DType::f32;
  if (is("bf16", "bfloat16")) return DType::bf16;
  if (is("fp16", "f16", "float16", "half")) return DType::f16;
  return take(parse_dtype(text), flag);
}

std::vector<RunSpec> plan_runs(const Flags& flags) {
  RunSpec run;
  run.param_dtype = parse_element("--param-dtype", flags.param_dtype);
  run.grad_dtype =
      flags.grad_dtype.empty() ? run.param_dtype : parse_element("--grad-dtype", flags.grad_dtype);
  run.store = take(parse_weight_store(flags.store), "--store");
  if (run.store != WeightStore::nearest && run.param_dtype != DType::bf16)
    throw Failure(kExitUsage, "--store: got '" + flags.store + "' with " +
                                  std::string(name(run.param_dtype)) +
                                  " parameters; add --param-dtype bf16, or use --store nearest");
  run.block_size = flags.block_size;
  run.guard = flags.guard;
  run.threads = flags.threads > 0 ? flags.threads : default_threads();
  run.config.amsgrad = flags.amsgrad;
  std::vector<RunSpec> runs;
  for (const Algorithm algorithm :
       parse_list("--optimizer", flags.optimizers, all_algorithms(), parse_algorithm)) {
    for (const StateFormat state :
         parse_list("--state", flags.states, all_state_formats(), parse_state_format)) {
      run.config.algorithm = algorithm;
      run.state = state;
      runs.push_back(run);
    }
  }
  return runs;
}

std::string label(const RunSpec& run) {
  return std::string(name(run.config.algorithm)) + ' ' + std::string(name(run.state));
}

Timing time_steps(const RunSpec& run, std::span<const TensorSpec> specs, int repeat) {
  Workload workload(run, specs);
  std::vector<double> milliseconds;
  for (int i = 1; i <= kWarmUps + repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    workload.step(i);
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    if (i > kWarmUps) milliseconds.push_back(elapsed.count());
  }
  return {median(milliseconds), *std::min_element(milliseconds.begin(), milliseconds.end()), 0.0};
}

// Times every row between copies; the bytes of one copy.
std::int64_t time_rows(std::vector<BenchRow>& rows, std::span<const TensorShape> shapes, int repeat,
                       Progress& progress) {
  progress.say("timing: copy");
  CopyMeter meter(rows.front().run.threads);
  if (!meter.note().empty()) progress.note(meter.note());
  const std::int64_t free = available_memory();
  for (const BenchRow& row : rows) {
    if (row.bytes.memory_bytes > free)
      throw Failure(kExitFailure, label(row.run) + " needs " + human_bytes(row.bytes.memory_bytes) +
                                      " of memory and " + human_bytes(free) +
                                      " are free; use a smaller --shape or --numel, or --dry-run");
  }
  const int copies = std::min(repeat, kMaxCopies);
  (void)meter.sample(1);
  CopySamples before = meter.sample(copies);
  for (BenchRow& row : rows) {
    progress.say("timing: " + label(row.run));
    row.timing = time_steps(row.run, tensor_specs(row.run, shapes, false), repeat);
    CopySamples after = meter.sample(copies);
    row.timing->copy_gb_per_s = meter.gb_per_s(before, after);
    before = std::move(after);
  }
  return meter.bytes();
}

// Accepts digits only, and a value in the range.
CLI::Validator whole_number(std::int64_t low, std::int64_t high, bool power_of_two = false) {
  const auto wrong = [=](const std::string& text) {
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool in_range = error == std::errc() && stop == end && low <= value && value <= high;
    if (in_range && (!power_of_two || std::has_single_bit(static_cast<std::uint64_t>(value))))
      return std::string();
    return "got '" + text + "', expected a " + (power_of_two ? "power of two" : "whole number") + " from " +
           std::to_string(low) + " to " + std::to_string(high);
  };
  return {wrong, ""};
}

template <class T>
std::string names(std::span<const T> values) {
  std::vector<std::string_view> out;
  for (const T value : values) out.push_back(name(value));
  return joined(out);
}

void bench_optimizer(const Flags& flags) {
  if (flags.device == "cuda")
    throw Failure(kExitFailure, "--device cuda: this build has no CUDA; use --device cpu");
  if (flags.device != "cpu")
    throw Failure(kExitUsage, "--device: got '" + flags.device + "', expected one of cpu, cuda");
  if (flags.shape != "flat" && flags.numel_given)
    throw Failure(kExitUsage, "--numel: got '" + flags.numel + "' with --shape " + flags.shape +
                                  ", whose tensors have their own sizes; drop one of the two");
  const std::vector<TensorShape> shapes =
      tensor_list(flags.shape, flags.numel_given ? parse_numel(flags.numel) : kDefaultNumel);
  const std::vector<RunSpec> runs = plan_runs(flags);
  BenchRun common{flags.shape, flags.device, std::string(take(implementation())), runs.front().threads, 0};

  std::vector<BenchRow> rows;
  rows.reserve(runs.size());
  for (const RunSpec& run : runs)
    rows.push_back({run, footprint(run, tensor_specs(run, shapes, false)), {}, {}});
  {
    Progress progress;
    for (BenchRow& row : rows) {
      progress.say("checksum: " + label(row.run));
      row.checksum = checksum(row.run);
    }
    if (!flags.dry_run) common.copy_bytes = time_rows(rows, shapes, flags.repeat, progress);
  }
  std::cout << (flags.json ? json_report(common, rows) : table_report(common, rows));
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  CLI::App* command = bench->add_subcommand("optimizer", "Time the optimizer step for each state format");
  auto flags = std::make_shared<Flags>();
  const auto text = [&](const char* flag, std::string& value, const char* type, const std::string& help) {
    return command->add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
  const auto number = [&](const char* flag, auto& value, const CLI::Validator& valid,
                          const std::string& help) {
    return command->add_option(flag, value, help)->type_name("N")->check(valid);
  };
  text("--shape", flags->shape, "NAME", "Tensors: flat (one), gpt2 (124M parameters) or parakeet (627M)");
  CLI::Option* numel = text("--numel", flags->numel, "N",
                            "Elements of flat: 67108864, 2^26 (the default), 64M (10^6) or 64Mi (2^20)");
  text("--state", flags->states, "LIST",
       "State formats, comma-separated, or all: " + names(all_state_formats()));
  text("--optimizer", flags->optimizers, "LIST",
       "Optimizers, comma-separated, or all: " + names(all_algorithms()));
  command->add_flag("--amsgrad", flags->amsgrad, "Keep the maximum of v (adam and adamw only)");
  text("--param-dtype", flags->param_dtype, "NAME", "Parameters: " + names(all_dtypes()));
  text("--grad-dtype", flags->grad_dtype, "NAME", "Gradients: the same names (default: as the parameters)");
  text("--store", flags->store, "NAME",
       "Weight store: " + names(all_weight_stores()) + " (all but nearest need --param-dtype bf16)");
  number("--block-size", flags->block_size, whole_number(kMinBlockSize, kMaxBlockSize, true),
         "Elements that share a scale: a power of two from 32 to 4096 (default: the format's)");
  number("--threads", flags->threads, whole_number(1, kMaxThreads),
         "Threads (default: the CPUs this process may use)");
  text("--device", flags->device, "NAME", "cpu or cuda");
  number("--repeat", flags->repeat, whole_number(1, 1000000), "Timed steps")->capture_default_str();
  command->add_flag("--guard", flags->guard, "Check gradients first and skip the step on NaN or infinity");
  command->add_flag("--dry-run", flags->dry_run, "Bytes and checksums only: nothing is timed");
  command->add_flag("--json", flags->json, "Print JSON on stdout, nothing else");
  command->footer(kFooter);
  command->callback([flags, numel] {
    flags->numel_given = numel->count() > 0;
    bench_optimizer(*flags);
  });
}

}  // namespace octavo::cli
