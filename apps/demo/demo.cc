// The program octavo-demo, which `make demo` builds and runs: it generates a text and trains a small model on
// it, as `octavo data make-text` and `octavo train` do. It contains the task `text` and no other parts of the
// command, so it takes a third of the command's build time.
//
//   octavo-demo CONFIG FOLDER   writes FOLDER/tales.txt and trains into FOLDER/run
//
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/tales.h"
#include "apps/octavo/terminal_console.h"
#include "train/base/status.h"
#include "train/io/output_file.h"
#include "train/trainer.h"

#include <cstdint>
#include <exception>
#include <iostream>
#include <span>
#include <string>

namespace octavo_train {
namespace {

constexpr std::int64_t kTextBytes = 2'000'000;

Status write_text(const std::string& path) {
  const std::string text = octavo::tales::make_text(kTextBytes, 1);
  ASSIGN_OR_RETURN(const std::string partial, partial_path(path));
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(partial, {0, text.size()}));
  RETURN_IF_ERROR(file.write(std::as_bytes(std::span(text))));
  return file.finish_as(path);
}

Result<Outcome> run_demo(const std::string& config_path, const std::string& folder) {
  const std::string text = folder + "/tales.txt";
  RETURN_IF_ERROR(write_text(text));
  const std::string overrides[] = {"data.train=" + text, "output_dir=" + folder + "/run",
                                   "training.device=cpu"};
  ASSIGN_OR_RETURN(const Config config, load(config_path, overrides));
  octavo::cli::TerminalConsole console;
  return train(config, console);
}

}  // namespace
}  // namespace octavo_train

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: octavo-demo CONFIG FOLDER\n";
    return 2;
  }
  try {
    const octavo_train::Result<octavo_train::Outcome> outcome = octavo_train::run_demo(argv[1], argv[2]);
    if (!outcome.ok()) {
      std::cerr << "octavo-demo: " << outcome.status().message() << '\n';
      return 1;
    }
    if (outcome->signal != 0) return 128 + outcome->signal;
    std::cout << "step " << outcome->step << " is saved in " << outcome->checkpoint
              << "\nreport: " << outcome->report << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "octavo-demo: " << error.what() << '\n';
    return 1;
  }
}
