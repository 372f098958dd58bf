// Options of the optimizer benchmark; see options.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/options.h"

#include "benchmarks/engine/algorithm.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/parse.h"

#include <octavo/backend.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <bit>
#include <charconv>

namespace octavo::cli {
namespace {

constexpr std::int64_t kFlatOnCpu = std::int64_t{1} << 26, kFlatOnGpu = std::int64_t{1} << 28;
constexpr int kRepeatOnCpu = 10, kRepeatOnGpu = 20;
constexpr int kMaxThreads = 1024;

// Calls parse(name) for each name of a comma-separated list. The caller has handled "all" before; errors
// mention that it is accepted, too.
template <class Parse>
auto parse_names(const std::string& text, Parse parse) {
  std::vector<decltype(parse(std::string_view()))> out;
  for (const std::string_view name : comma_separated(text)) {
    try {
      out.push_back(parse(name));
    } catch (const Failure& wrong) {
      throw Failure(wrong.exit_code(), std::string(wrong.what()) + ", or all");
    }
  }
  return out;
}

// Parses a comma-separated list of names; "all" selects every element of `all`.
template <class T>
std::vector<T> parse_list(const std::string& flag, const std::string& text, std::span<const T> all,
                          Result<T> (*parse)(std::string_view)) {
  if (text == "all") return {all.begin(), all.end()};
  return parse_names(text, [&](std::string_view name) { return take(parse(name), flag); });
}

std::vector<std::string> parse_shapes(const std::string& text) {
  if (text == "all") return shape_names();
  return parse_names(text, [](std::string_view name) {
    (void)tensor_list(name, 1);
    return std::string(name);
  });
}

// Parses names of switching options. Each must be a switch of one of the chosen optimizers.
std::vector<std::string> parse_switches(const BenchFlags& flags, std::span<const Algorithm> chosen) {
  if (flags.switches.empty()) return {};
  const std::vector<std::string_view> known = all_switches(chosen);
  std::vector<std::string> out;
  for (const std::string_view name : comma_separated(flags.switches)) {
    const std::string& each = out.emplace_back(name);
    if (std::ranges::find(known, each) == known.end()) {
      throw Failure(kExitUsage, "--switch: got '" + each + "' with --optimizer " + flags.optimizers +
                                    ", which has " +
                                    (known.empty() ? std::string("no switches") : joined(known)));
    }
  }
  return out;
}

// Turns on those of `switches` that this algorithm has. The others belong to other optimizers of the run.
GroupConfig switched(Algorithm algorithm, std::span<const std::string> switches) {
  GroupConfig config = usual_config(algorithm);
  for (const std::string& each : switches) {
    if (const int bit = switch_bit(algorithm, each); bit >= 0) config.switches |= 1U << bit;
  }
  return config;
}

std::vector<RunSpec> plan_runs(const BenchFlags& flags) {
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
  run.grad_offset = flags.grad_offset;
  run.guard = flags.guard;
  run.threads = flags.threads > 0 ? flags.threads : default_threads();
  std::vector<RunSpec> runs;
  const std::vector<Algorithm> chosen =
      parse_list("--optimizer", flags.optimizers, all_algorithms(), parse_algorithm);
  const std::vector<std::string> switches = parse_switches(flags, chosen);
  for (const Algorithm algorithm : chosen) {
    run.config = switched(algorithm, switches);
    for (const StateFormat state :
         parse_list("--state", flags.states, all_state_formats(), parse_state_format)) {
      run.state = state;
      runs.push_back(run);
    }
  }
  return runs;
}

template <class T>
std::string names(std::span<const T> values) {
  std::vector<std::string_view> out;
  for (const T value : values) out.push_back(name(value));
  return joined(out);
}

}  // namespace

DType parse_element(const std::string& flag, const std::string& text) {
  const auto is = [&](auto... names) { return ((text == names) || ...); };
  if (is("fp32", "f32", "float32", "float")) return DType::f32;
  if (is("bf16", "bfloat16")) return DType::bf16;
  if (is("fp16", "f16", "float16", "half")) return DType::f16;
  return take(parse_dtype(text), flag);
}

CLI::Validator whole_number(std::int64_t low, std::int64_t high, bool power_of_two) {
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

void add_bench_options(CLI::App& command, BenchFlags& flags) {
  const AddOption text{command};
  const auto number = [&](const char* flag, auto& value, const CLI::Validator& valid,
                          const std::string& help) {
    return command.add_option(flag, value, help)->type_name("N")->check(valid);
  };
  text("--device", flags.device, "NAME", "cpu, cuda (the first GPU) or cuda:N");
  text("--shape", flags.shapes, "LIST",
       "Tensors, comma-separated, or all: flat (one tensor), gpt2 (124M parameters), parakeet (627M), "
       "gpt2-embedding (39M, few rows with a gradient), moe (118M), lora (25M), vit-g (1.1G)");
  command
      .add_option("--numel", flags.numel,
                  "Elements of flat: 67108864, 2^26 (the default; 2^28 on a GPU), 64M (10^6) or 64Mi (2^20)")
      ->type_name("N");
  text("--zeros", flags.zeros, "LIST",
       "Shares of rows that never have a gradient, comma-separated: 0,0.5,0.9");
  number("--settle", flags.settle, whole_number(0, 1000000),
         "Steps with different gradients before the timed ones (default: 0, on a GPU 5; with tokens or "
         "experts 20 and 300)");
  text("--state", flags.states, "LIST",
       "State formats, comma-separated, or all: " + names(all_state_formats()));
  text("--optimizer", flags.optimizers, "LIST",
       "Optimizers, comma-separated, or all: " + names(all_algorithms()));
  text("--switch", flags.switches, "LIST",
       "Options that add moments, comma-separated: " + joined(all_switches(all_algorithms())));
  text("--param-dtype", flags.param_dtype, "NAME", "Parameters: " + names(all_dtypes()));
  text("--grad-dtype", flags.grad_dtype, "NAME",
       "Gradients: the same names (default: the dtype of the parameters)");
  number("--grad-offset", flags.grad_offset, whole_number(0, 64),
         "Offset of the gradients in elements, as of views into a bucket (default: 0)");
  text("--store", flags.store, "NAME",
       "Weight store: " + names(all_weight_stores()) + " (all but nearest need --param-dtype bf16)");
  number("--block-size", flags.block_size, whole_number(kMinBlockSize, kMaxBlockSize, true),
         "Elements that share a scale: a power of two from 32 to 4096 (default: the format's)");
  number("--threads", flags.threads, whole_number(1, kMaxThreads),
         "CPU threads (default: the number of CPUs this process may use)");
  number("--repeat", flags.repeat, whole_number(1, 1000000), "Timed steps (default: 10, on a GPU 20)");
  command.add_flag("--guard", flags.guard, "Check gradients first and skip the step on NaN or infinity");
  command.add_flag("--norm", flags.norm, "Add a row for the norm of all gradients");
  command.add_flag("--dry-run", flags.dry_run, "Print bytes and checksums without timing");
  command.add_flag("--json", flags.json, "Print JSON on stdout, nothing else");
}

BenchOptions plan_bench(const BenchFlags& flags) {
  BenchOptions plan;
  plan.device = parse_device(flags.device);
  const bool gpu = plan.device.kind == DeviceKind::cuda;
  plan.shapes = parse_shapes(flags.shapes);
  if (flags.numel && std::find(plan.shapes.begin(), plan.shapes.end(), "flat") == plan.shapes.end())
    throw Failure(kExitUsage, "--numel: got '" + *flags.numel + "' with --shape " + flags.shapes +
                                  ", whose tensors have their own sizes; drop one of the two");
  plan.flat_numel = flags.numel ? parse_numel(*flags.numel) : gpu ? kFlatOnGpu : kFlatOnCpu;
  plan.runs = plan_runs(flags);
  plan.zeros = parse_zeros(flags.zeros);
  plan.repeats = {flags.repeat > 0 ? flags.repeat : gpu ? kRepeatOnGpu : kRepeatOnCpu, flags.settle};
  return plan;
}

}  // namespace octavo::cli
