// Parses the config file argument of `octavo train` and `octavo plan`: the first positional argument, or the
// value of --config, which scripts of other trainers use.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

// Adds the config file and the overrides of its settings to a command. The returned function, to be called in
// the command's callback, sets `file` and `overrides` to the parsed values; `file` is empty if none was
// given. REQUIRES: `file` and `overrides` live until the command line is parsed.
std::function<void()> add_config_file(CLI::App& command, std::string& file,
                                      std::vector<std::string>& overrides);

}  // namespace octavo::cli
