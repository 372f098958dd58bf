// Resolves the relative paths of a config. A key's codec (codec.h) defines whether it has paths that the run
// reads, path() and paths(), or creates, new_path().
//
// A path to read that is given in the config file is relative to the file's folder if it exists there, else
// to the working directory. A path given on the command line and a path that the run creates are relative to
// the working directory.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"

#include <string>

namespace octavo_train {

// Prepends the folder of `file`, the config's path, to the paths that exist there. For paths that exist
// nowhere, records the places for places_looked_at(). A pattern with * ? or [ ] exists if a name matches it.
void resolve_paths(Config& config, const std::string& file);

// Resolves a path to read that is given in the config file `file`: returns the path in the file's folder if
// it exists there, else `path`.
std::string found_path(const std::string& path, const std::string& file);
// Returns the end of an error about such a path, like places_looked_at(). `file` is empty for a command line.
std::string looked_at(const std::string& path, const std::string& file);

// Returns the settings with absolute paths, so that they are valid in any working directory.
Settings with_absolute_paths(Settings settings);

// Returns the settings with empty paths, because paths may differ between machines.
Settings without_paths(Settings settings);

// Returns the end of an error about a path of the settings that does not exist: "; looked at /conf/corpus.txt
// (beside the config) and /home/corpus.txt (from the working directory)". Empty for an absolute path.
std::string places_looked_at(const Settings& settings, const std::string& path);

}  // namespace octavo_train
