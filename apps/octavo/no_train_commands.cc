// A build without the trainer has no commands of it.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"

namespace octavo::cli {

void add_train_commands(CLI::App& /*app*/) {}

}  // namespace octavo::cli
