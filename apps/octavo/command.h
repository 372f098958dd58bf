// One run of a program with subcommands: the command line is read, one subcommand works, and every failure
// becomes one line on stderr ("octavo: ...") and an exit code: 0 done, 1 failed, 2 wrong usage, or what the
// Failure says.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

using AddSubcommands = std::function<void(CLI::App&)>;

int run_command(int argc, char** argv, const AddSubcommands& add_subcommands);

}  // namespace octavo::cli
