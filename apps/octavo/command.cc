// SPDX-License-Identifier: MIT
#include "command.h"

#include "cli.h"
#include "help.h"

#include <octavo/backend.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace octavo::cli {
namespace {

// An empty message: another process has said it.
int complain(int exit_code, std::string message) {
  if (message.empty()) return exit_code;
  while (!message.empty() && message.back() == '\n') message.pop_back();
  std::cerr << "octavo: " << message << '\n';
  return exit_code;
}

// What was wrong with the command line, and where to look. Some of CLI11's messages are replaced by clearer
// ones.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;  // the subcommand that found an unknown argument, or the last one that was given
  std::string path = "octavo";
  while (at->remaining().empty() && !at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += ' ' + at->get_name();
  }
  std::vector<std::string> known;
  for (const CLI::App* each : at->get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(each->get_name());
  const std::string expected = (known.size() > 1 ? "one of " : "") + joined(known);
  const std::vector<std::string> extras = at->remaining();
  const auto option =
      std::find_if(extras.begin(), extras.end(), [](const auto& each) { return each.starts_with('-'); });

  std::string what = error.what();
  const std::string flag = what.substr(0, what.find(':'));
  if (option != extras.end())
    what = "unknown option '" + *option + '\'';
  else if (!extras.empty() && !known.empty())
    what = "unknown subcommand '" + extras.front() + "', expected " + expected;
  else if (!extras.empty())
    what = "unexpected argument '" + extras.front() + '\'';
  else if (!known.empty())
    what = "a subcommand is missing, expected " + expected;
  else if (what.ends_with(" missing"))  // "--state: 1 required TEXT missing"
    what = flag + ": expected a value";
  else if (what.find("At Most 1 required") != std::string::npos)
    what = flag + ": given more than once";
  return what + " (see " + path + " --help)";
}

int parse_and_run(int argc, char** argv, const AddSubcommands& add_subcommands) {
  CLI::App app("Octavo: low-bit optimizers, and training with them.", "octavo");
  app.set_version_flag("--version", std::string(version()), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  add_subcommands(app);
  if (argc <= 1) {
    std::cout << app.help();
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(kExitUsage, usage_message(app, error));
  }
  std::cout.flush();
  if (!std::cout) return complain(kExitFailure, "could not write the output");
  return 0;
}

}  // namespace

int run_command(int argc, char** argv, const AddSubcommands& add_subcommands) {
  try {
    return parse_and_run(argc, argv, add_subcommands);
  } catch (const Failure& failure) {
    return complain(failure.exit_code(), failure.what());
  } catch (const std::bad_alloc&) {
    return complain(kExitFailure, "out of memory");
  } catch (const std::exception& error) {
    return complain(kExitFailure, error.what());
  }
}

}  // namespace octavo::cli
