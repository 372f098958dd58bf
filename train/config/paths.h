// Where the relative paths of a config lead. Which keys have paths is known by their codecs (codec.h): what a
// run reads, path() and paths(), and what it makes, new_path().
//
// A path to read in a file: beside the file if it is there, else from the working directory. A path on the
// command line, and one that the run makes: from the working directory.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"

#include <string>

namespace octavo::train {

// Puts the file's folder before the paths that are there. Keeps the places of those that are nowhere, for
// places_looked_at. `file`: the config's path. A pattern with * ? or [ ] is there if a name matches.
void resolve_paths(Config& config, const std::string& file);

// A path to read that stands in a config file: beside the file if it is there, else as it is.
std::string found_path(const std::string& path, const std::string& file);
// The end of an error about such a path, as places_looked_at has it. `file`: empty on a command line.
std::string looked_at(const std::string& path, const std::string& file);

// The same settings for any working directory: all their paths begin with /.
Settings with_absolute_paths(Settings settings);

// The same settings without what only this machine may know: their paths are empty.
Settings without_paths(Settings settings);

// "; looked at /conf/corpus.txt (beside the config) and /home/corpus.txt (from the working directory)": the
// end of an error about a path of the settings that is not there. Nothing for a path that says it all.
std::string places_looked_at(const Settings& settings, const std::string& path);

}  // namespace octavo::train
