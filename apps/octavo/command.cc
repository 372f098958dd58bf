// SPDX-License-Identifier: MIT
#include "apps/octavo/command.h"

#include "apps/octavo/common/cli.h"
#include "apps/octavo/help.h"
#include "train/base/terminal_text.h"

#include <octavo/backend.h>

#include <CLI/CLI.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

namespace octavo::cli {
namespace {

// Prints "octavo: MESSAGE" on stderr and returns `exit_code`. An empty message means that another process has
// printed it.
int complain(int exit_code, std::string message) {
  if (message.empty()) return exit_code;
  while (!message.empty() && message.back() == '\n') message.pop_back();
  // A message may contain names and values from a file. Control characters in them must not reach the
  // terminal.
  std::cerr << "octavo: " << octavo_train::terminal_text(message) << '\n';
  return exit_code;
}

// Returns the error in the command line and the --help that explains it. Clearer messages replace some of
// CLI11's.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;  // the subcommand that found an unknown argument, or the last one given
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

// Opens /dev/null as each of the descriptors 0 to 2 that was closed when the program started. Otherwise the
// first files that the program opens get these numbers, and console lines are written into them.
void reserve_standard_descriptors() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    // open() returns the lowest free number.
    if (fcntl(number, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != number) return;
  }
}

std::string thread_message(const std::system_error& error) {
  return "a thread could not be started (" + error.code().message() +
         "); raise the limit on processes and threads (ulimit -u, or the container's)";
}

}  // namespace

int run_command(int argc, char** argv, const AddSubcommands& add_subcommands) {
  reserve_standard_descriptors();
  try {
    return parse_and_run(argc, argv, add_subcommands);
  } catch (const Failure& failure) {
    return complain(failure.exit_code(), failure.what());
  } catch (const std::bad_alloc&) {
    return complain(kExitFailure, "out of memory");
  } catch (const std::system_error& error) {
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    return complain(kExitFailure, no_thread ? thread_message(error) : error.what());
  } catch (const std::exception& error) {
    return complain(kExitFailure, error.what());
  }
}

}  // namespace octavo::cli
