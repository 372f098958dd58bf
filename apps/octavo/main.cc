// The command `octavo`: builds the command line, runs one subcommand, and turns every failure into one line
// on stderr
// ("octavo: ...") and an exit code: 0 done, 1 failed, 2 wrong usage.
// SPDX-License-Identifier: MIT
#include "cli.h"

#include <octavo/backend.h>

#include <CLI/CLI.hpp>

#include <exception>
#include <iostream>
#include <new>
#include <string>

namespace {

int complain(int exit_code, std::string message) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  std::cerr << "octavo: " << message << '\n';
  return exit_code;
}

int run(int argc, char** argv) {
  CLI::App app("Octavo: low-bit optimizers for training.", "octavo");
  app.set_version_flag("--version", std::string(octavo::version()));
  app.require_subcommand(1);
  octavo::cli::add_info(app);
  octavo::cli::add_bench(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(octavo::cli::kExitUsage, std::string(error.what()) + " (--help lists what there is)");
  }
  std::cout.flush();
  if (!std::cout) return complain(octavo::cli::kExitFailure, "could not write the output");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const octavo::cli::Failure& failure) {
    return complain(failure.exit_code(), failure.what());
  } catch (const std::bad_alloc&) {
    return complain(octavo::cli::kExitFailure, "out of memory");
  } catch (const std::exception& error) {
    return complain(octavo::cli::kExitFailure, error.what());
  }
}
