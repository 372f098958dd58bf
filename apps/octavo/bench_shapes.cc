// `octavo bench shapes`: the tensors that the benchmarks run over, for other programs to run over too.
// SPDX-License-Identifier: MIT
#include "bench/shapes.h"
#include "cli.h"
#include "table.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;

struct Flags {
  std::string shape, numel = "2^26";
  bool json = false;
};

std::vector<std::int64_t> sizes(const TensorShape& tensor) {
  return {tensor.dims.begin(), tensor.dims.begin() + tensor.ndim};
}

void bench_shapes(const Flags& flags) {
  const std::vector<TensorShape> tensors = tensor_list(flags.shape, parse_numel(flags.numel));
  std::int64_t numel = 0;
  for (const TensorShape& tensor : tensors) numel += tensor.numel();
  if (flags.json) {
    json out = {{"shape", flags.shape}, {"numel", numel}, {"tensors", json::array()}};
    for (const TensorShape& tensor : tensors)
      out["tensors"].push_back({{"name", tensor.name}, {"shape", sizes(tensor)}});
    std::cout << out.dump() << '\n';
    return;
  }
  Table table({{"tensor"}, {"shape"}, {"elements", Table::Align::right}});
  for (const TensorShape& tensor : tensors) {
    std::vector<std::string> text;
    for (const std::int64_t size : sizes(tensor)) text.push_back(std::to_string(size));
    table.add({tensor.name, joined(text, "x"), grouped(tensor.numel())});
  }
  std::cout << table.text() << grouped(static_cast<std::int64_t>(tensors.size())) << " tensors, "
            << grouped(numel) << " parameters\n";
}

}  // namespace

void add_bench_shapes(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("shapes", "List the tensors of a shape");
  auto flags = std::make_shared<Flags>();
  command->add_option("name", flags->shape, "One of " + joined(shape_names()))->type_name("NAME")->required();
  command->add_option("--numel", flags->numel, "Elements of flat")->type_name("N")->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON on stdout, nothing else");
  command->callback([flags] { bench_shapes(*flags); });
}

}  // namespace octavo::cli
