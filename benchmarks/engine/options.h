// The options of `octavo bench optimizer`: the flags as given, and the validated plan made from them.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/timing.h"

#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
class Validator;
}  // namespace CLI

namespace octavo::cli {

// A benchmark without flags runs only this optimizer.
inline constexpr const char* kDefaultOptimizer = "adamw";

// Parses the library's names of element types and those of common frameworks.
DType parse_element(const std::string& flag, const std::string& text);
// Accepts only digits, with a value in the range.
CLI::Validator whole_number(std::int64_t low, std::int64_t high, bool power_of_two = false);

struct BenchFlags {
  std::string shapes = "flat", states = "fp32,8bit,4bit,fp8", optimizers = kDefaultOptimizer, switches;
  std::string param_dtype = "fp32", grad_dtype, store = "nearest", device = "cpu";
  std::optional<std::string> numel;
  std::string zeros = "0";
  std::optional<int> settle;
  std::int64_t block_size = 0, grad_offset = 0;
  int threads = 0, repeat = 0;  // 0: the default
  bool guard = false, norm = false, json = false, dry_run = false;
};

// Adds the options to a subcommand. Parsing writes them to `flags`, which must live until then.
void add_bench_options(CLI::App& command, BenchFlags& flags);

struct BenchOptions {
  Device device;
  std::vector<std::string> shapes;  // names for tensor_list
  std::int64_t flat_numel = 0;
  std::vector<double> zeros;  // shares of rows without a gradient; each shape has one section for each share
  std::vector<RunSpec> runs;  // at least one; the rows of each section
  Repeats repeats;
};

// Checks everything that needs no hardware; a usage Failure names the flag.
BenchOptions plan_bench(const BenchFlags& flags);

}  // namespace octavo::cli
