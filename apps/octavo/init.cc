// Implements `octavo init`: writes a starter config with comments. The texts are
// examples/train/starter_*.yaml, which the build embeds; the flags replace single values in them.
// SPDX-License-Identifier: MIT
#include "apps/octavo/starters.h"
#include "apps/octavo/subcommands.h"
#include "cli/cli.h"
#include "train/config/config.h"
#include "train/io/text_file.h"

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace octavo::cli {
namespace {

struct InitFlags {
  std::string task, file = "run.yaml", train, val, output;
  bool force = false;
};

// Replaces the value of `key`, which the text has once at the start of a line after blanks. The comment of
// the line stays.
void replace_value(std::string& text, std::string_view key, const std::string& value) {
  if (value.empty()) return;
  const std::string wanted = " " + std::string(key) + ": ";
  const std::size_t at = (key == "output_dir" ? text.find("\noutput_dir: ") + 1 : text.find(wanted) + 1);
  const std::size_t begin = at + key.size() + 2;
  const std::size_t line = text.find('\n', begin);
  const std::size_t comment = std::min(text.find(" #", begin), line);
  std::string quoted = "'";
  for (const char c : value) quoted += c == '\'' ? "''" : std::string(1, c);
  quoted += "'";
  const bool plain =
      value.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-") ==
      std::string::npos;
  text.replace(begin, comment - begin, (plain ? value : quoted) + (comment < line ? " " : ""));
}

// Asks on the terminal. An empty answer selects `standard`.
std::string ask(const std::string& question, const std::string& standard) {
  std::cout << question << " [" << standard << "]: " << std::flush;
  std::string answer;
  if (!std::getline(std::cin, answer)) std::cout << '\n';
  return answer.empty() ? standard : answer;
}

// Asks for the values that no flag gives, if a person can answer.
void complete(InitFlags& flags) {
  const bool asks = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (flags.task.empty()) flags.task = asks ? ask("text or speech?", "text") : "text";
  if (flags.task != "text" && flags.task != "speech")
    throw Failure(kExitUsage, "task: got '" + flags.task + "', expected text or speech");
  const bool text = flags.task == "text";
  if (text && !flags.val.empty())
    throw Failure(kExitUsage, "--val: a text has no validation file; its last tenth is held out");
  if (!asks) return;
  if (flags.train.empty())
    flags.train = ask(text ? "Text file to train on" : "Manifest of the training clips",
                      text ? "corpus.txt" : "train.jsonl");
  if (!text && flags.val.empty()) flags.val = ask("Manifest of the validation clips", "val.jsonl");
}

void init(InitFlags flags) {
  complete(flags);
  if (!flags.force && std::filesystem::exists(flags.file))
    throw Failure(kExitUsage, flags.file + " exists; give another name, or --force to replace it");
  std::string text(flags.task == "text" ? kStarterText : kStarterSpeech);
  replace_value(text, flags.task == "text" ? "train" : "train_manifest", flags.train);
  replace_value(text, "val_manifest", flags.task == "text" ? "" : flags.val);
  replace_value(text, "output_dir", flags.output);
  for (std::size_t at = text.find("FILE"); at != std::string::npos; at = text.find("FILE", at))
    text.replace(at, 4, flags.file);
  check(octavo_train::parse(text, flags.file).status());
  check(octavo_train::write_text_file(flags.file, text));
  std::cout << flags.file << ": a config with comments for the task " << flags.task << ". Next:\n"
            << "  octavo plan " << flags.file << " --gpu 24GB     memory and time on a GPU of 24 GB\n"
            << "  octavo train " << flags.file << "               Ctrl-C saves; the same command resumes\n";
}

}  // namespace

void add_init(CLI::App& app) {
  CLI::App* command = app.add_subcommand("init", "Write a starter config with comments");
  auto flags = std::make_shared<InitFlags>();
  command->add_option("file", flags->file, "The config to write")->capture_default_str();
  command->add_option("--task", flags->task, "The task; asked for on a terminal, text otherwise")
      ->check(CLI::IsMember({"text", "speech"}));
  command->add_option("--train", flags->train, "Training data: a text file, or a manifest of recordings")
      ->type_name("FILE");
  command->add_option("--val", flags->val, "Manifest of the validation clips (speech)")->type_name("FILE");
  command->add_option("--output-dir", flags->output, "The run's folder")->type_name("FOLDER");
  command->add_flag("--force", flags->force, "Replace an existing file");
  command->footer(R"(For example:
  octavo init run.yaml --train corpus.txt
  octavo init run.yaml --task speech --train train.jsonl --val val.jsonl)");
  command->callback([flags] { init(*flags); });
}

}  // namespace octavo::cli
