// Runs a program with subcommands: parses the command line and runs one subcommand. Every failure becomes one
// line on stderr ("octavo: ...") and an exit code: 0 success, 1 failure, 2 wrong usage, or the code of the
// Failure.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
class Option;
}  // namespace CLI

namespace octavo::cli {

using AddSubcommands = std::function<void(CLI::App&)>;

// Marks a positional argument as required in the help although CLI11 does not check it.
inline constexpr const char* kRequiredText = "REQUIRED";

// Returns bpe and char for an option with the check {bpe,char}, and nothing for an option with another check.
std::vector<std::string> choices_of(const CLI::Option& option);

int run_command(int argc, char** argv, const AddSubcommands& add_subcommands);

}  // namespace octavo::cli
