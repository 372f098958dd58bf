// Implements `octavo bench shapes`: lists the tensors that the benchmarks run over and which of their rows
// have gradients, so that other programs can run over them too.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/commands.h"
#include "benchmarks/engine/rows.h"
#include "benchmarks/engine/shapes.h"
#include "cli/cli.h"
#include "cli/parse.h"
#include "cli/table.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;

struct ShapeFlags {
  std::string shape, numel = "2^26", zeros = "0";
  bool json = false;
};

std::vector<std::int64_t> sizes(const TensorShape& tensor) {
  return {tensor.dims.begin(), tensor.dims.begin() + tensor.ndim};
}

// Adds "gradient", the rule of its rows, if some rows have no gradient.
json tensor_json(const TensorShape& tensor, double zeros) {
  json out = {{"name", tensor.name}, {"shape", sizes(tensor)}};
  if (tensor.role == TensorRole::adapter_out) out["zero_weights"] = true;
  if (const RowRule rule = row_rule(tensor, zeros); rule.rows > 0)
    out["gradient"] = {{"row", rule.row}, {"rows", rule.rows}, {"alive", rule.alive}, {"draws", rule.draws}};
  return out;
}

std::string gradient_text(const TensorShape& tensor, double zeros) {
  const RowRule rule = row_rule(tensor, zeros);
  if (rule.rows == 0) return "all";
  const std::string alive = grouped(rule.alive) + " of " + grouped(rule.rows) + " rows";
  return rule.draws == 0 ? alive : grouped(rule.draws) + " draws among " + alive;
}

double one_share(const std::string& text) {
  const std::vector<double> shares = parse_zeros(text);
  if (shares.size() != 1)
    throw Failure(kExitUsage, "--zeros: got '" + text + "', expected one share from 0 to 1, such as 0.9");
  return shares.front();
}

void bench_shapes(const ShapeFlags& flags) {
  const double zeros = one_share(flags.zeros);
  const std::vector<TensorShape> tensors = tensor_list(flags.shape, parse_numel(flags.numel));
  std::int64_t numel = 0;
  for (const TensorShape& tensor : tensors) numel += tensor.numel();
  if (flags.json) {
    json out = {{"shape", flags.shape}, {"numel", numel}, {"tensors", json::array()}};
    for (const TensorShape& tensor : tensors) out["tensors"].push_back(tensor_json(tensor, zeros));
    std::cout << out.dump() << '\n';
    return;
  }
  Table table({{"tensor"}, {"shape"}, {"elements", Table::Align::right}, {"gradient"}});
  for (const TensorShape& tensor : tensors) {
    std::vector<std::string> text;
    for (const std::int64_t size : sizes(tensor)) text.push_back(std::to_string(size));
    table.add({tensor.name, joined(text, "x"), grouped(tensor.numel()), gradient_text(tensor, zeros)});
  }
  std::cout << table.text() << grouped(static_cast<std::int64_t>(tensors.size())) << " tensors, "
            << grouped(numel) << " parameters\n";
}

}  // namespace

void add_bench_shapes(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("shapes", "List the tensors of a shape");
  auto flags = std::make_shared<ShapeFlags>();
  command->add_option("name", flags->shape, "One of " + joined(shape_names()))->type_name("NAME")->required();
  command->add_option("--numel", flags->numel, "Elements of flat")->type_name("N")->capture_default_str();
  command
      ->add_option(
          "--zeros", flags->zeros,
          "Share of the rows of tensors with rows that never have a gradient; those of flat have 1024 "
          "elements")
      ->type_name("SHARE")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON on stdout, nothing else");
  command->callback([flags] { bench_shapes(*flags); });
}

}  // namespace octavo::cli
