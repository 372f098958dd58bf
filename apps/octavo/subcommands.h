// The subcommands that `octavo` itself runs.
// SPDX-License-Identifier: MIT
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

// Each function adds its subcommand, with the work as its callback. The app must outlive the parse.
void add_info(CLI::App& app);
void add_init(CLI::App& app);
// Adds the trainer's commands, in a build that has the trainer. `argv` is the command line of this process,
// which octavo-trainer gets.
void add_train_commands(CLI::App& app, char** argv);
void add_data(CLI::App& app);
void add_export(CLI::App& app);
void add_report(CLI::App& app);
// Subcommands of data.
void add_data_check(CLI::App& data);
void add_make_speech(CLI::App& data);
void add_split(CLI::App& data);
void add_make_tokenizer(CLI::App& data);

}  // namespace octavo::cli
