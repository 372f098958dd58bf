// Implements `octavo report`: writes one HTML page about a run, or about several side by side, or serves it
// while the run goes on.
// SPDX-License-Identifier: MIT
#include "train/report/report.h"
#include "apps/octavo/serve.h"
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
  bool watch = false;
  ServeOptions serve;
};

std::string output_path(const ReportFlags& flags) {
  if (!flags.output.empty()) return flags.output;
  if (flags.runs.size() > 1) return "octavo-report.html";
  return (std::filesystem::path(flags.runs.front()) / "report.html").string();
}

void report(const ReportFlags& flags) {
  if (flags.watch) {
    const auto page = [&flags] { return octavo_train::make_report(flags.runs); };
    check(page().status());  // a folder that is not a run's is an error before the server starts
    check(serve_page(flags.serve, page, [](const std::string& url) {
      std::cout << url << "  (Ctrl-C stops; the users of this machine can open it)" << std::endl;
    }));
    return;
  }
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
  auto* watch = command->add_flag("--watch", flags->watch,
                                  "Serve the page on 127.0.0.1 until Ctrl-C; it shows a running training");
  watch->excludes("--output");
  command->add_option("--port", flags->serve.port, "Port of --watch; 0: any free port")
      ->capture_default_str()
      ->needs(watch);
  command
      ->add_option("--every", flags->serve.refresh_seconds,
                   "Seconds after which --watch loads the page again")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str()
      ->needs(watch);
  command->footer(R"(For example:
  octavo report runs/first                     one HTML page
  octavo report runs/first runs/second         compare two runs
  octavo report runs/first --watch             a page that follows a running training)");
  command->callback([flags] { report(*flags); });
}

}  // namespace octavo::cli
