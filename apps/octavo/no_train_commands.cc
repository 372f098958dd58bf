// Replaces train_commands.cc in a build without the trainer: adds no commands.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"

namespace octavo::cli {

void add_train_commands(CLI::App& /*app*/, char** /*argv*/) {}

}  // namespace octavo::cli
