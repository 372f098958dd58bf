// Implements `octavo report`: writes one HTML page about a run, or about several side by side.
// SPDX-License-Identifier: MIT
#include "train/report/report.h"
#include "apps/octavo/subcommands.h"
#include "cli/cli.h"
#include "train/io/text_file.h"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

namespace octavo::cli {
namespace {

struct ReportFlags {
  std::vector<std::string> runs;
  std::string output;
};

std::string output_path(const ReportFlags& flags) {
  if (!flags.output.empty()) return flags.output;
  if (flags.runs.size() > 1) return "octavo-report.html";
  return (std::filesystem::path(flags.runs.front()) / "report.html").string();
}

void report(const ReportFlags& flags) {
  const std::string page = take(octavo_train::make_report(flags.runs));
  const std::string path = output_path(flags);
  check(octavo_train::write_text_file(path, page));
  std::cout << path << '\n';
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command = app.add_subcommand("report", "Write an HTML page about a run, or several side by side");
  auto flags = std::make_shared<ReportFlags>();
  command->add_option("runs", flags->runs, "Folders of runs (their output_dir)")
      ->type_name("RUN")
      ->required();
  command
      ->add_option("-o,--output", flags->output,
                   "The page; RUN/report.html, or ./octavo-report.html for several, unless given")
      ->type_name("FILE");
  command->callback([flags] { report(*flags); });
}

}  // namespace octavo::cli
