// The config file of `octavo train` and `octavo plan`: the first word of the command line, or the value of
// --config, as scripts of other trainers have it.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

// Adds the file and the settings that replace those of the file to a command. The returned function, for the
// command's callback, sets `file` and `overrides` to what was given; `file` is empty where there is none.
// REQUIRES: `file` and `overrides` live until the command line is parsed.
std::function<void()> add_config_file(CLI::App& command, std::string& file,
                                      std::vector<std::string>& overrides);

}  // namespace octavo::cli
