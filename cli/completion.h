// Tab completion: `octavo completion bash|zsh|fish` prints a script for the shell. The script asks the hidden
// subcommand `octavo __complete WORD...` for candidates, so it never lists an option that this build lacks.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

// Adds both subcommands. The app must outlive the parse.
void add_completion(CLI::App& app);

// Returns the candidates for the last word, which may be empty: subcommands, options, or the choices of an
// option. An empty list means that the shell completes file names.
std::vector<std::string> complete_words(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace octavo::cli
