// Implements `octavo init`: writes a starter config with comments. The texts are
// examples/train/starter_*.yaml, which the build embeds; the flags replace single values in them.
// SPDX-License-Identifier: MIT
#include "apps/octavo/starters.h"
#include "apps/octavo/subcommands.h"
#include "cli/cli.h"
#include "train/base/text.h"
#include "train/config/config.h"
#include "train/io/text_file.h"

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

namespace octavo::cli {
namespace {

struct InitFlags {
  std::string task, file = "run.yaml", train, val, output;
  bool force = false;
};

// Returns the value as YAML that is read as this text: quoted, except for plain names of files.
std::string yaml_text(const std::string& value) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_./-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  const bool path =
      value.find_first_of("./") != std::string::npos && value.front() != '-' && value.front() != '.';
  if (path && std::ranges::all_of(value, plain) &&
      std::isalpha(static_cast<unsigned char>(value.front())) != 0)
    return value;
  std::string quoted = "'";
  for (const char c : value) quoted += c == '\'' ? "''" : std::string(1, c);
  return quoted + "'";
}

// Replaces the value of `key`, which the text has once, at the start of a line or after blanks. The comment
// of the line stays.
void replace_value(std::string& text, std::string_view key, const std::string& value) {
  if (value.empty()) return;
  const std::string wanted = (key == "output_dir" ? "\n" : " ") + std::string(key) + ": ";
  const std::size_t begin = text.find(wanted) + wanted.size();
  const std::size_t line = text.find('\n', begin);
  const std::size_t comment = std::min(text.find(" #", begin), line);
  text.replace(begin, comment - begin, yaml_text(value) + (comment < line ? " " : ""));
}

// Asks on the terminal. An empty answer selects `standard`.
std::string ask(const std::string& question, const std::string& standard) {
  std::cout << question << " [" << standard << "]: " << std::flush;
  std::string answer;
  if (!std::getline(std::cin, answer)) throw Failure(kExitUsage, "no answer; nothing was written");
  const std::size_t begin = answer.find_first_not_of(" \t");
  if (begin == std::string::npos) return standard;
  return answer.substr(begin, answer.find_last_not_of(" \t") - begin + 1);
}

// Asks for the values that no flag gives, if a person can answer.
void complete(InitFlags& flags) {
  const bool asks = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (flags.task.empty()) flags.task = asks ? octavo_train::lower(ask("text or speech?", "text")) : "text";
  if (flags.task != "text" && flags.task != "speech")
    throw Failure(kExitUsage, "task: got '" + flags.task + "', expected text or speech");
  const bool text = flags.task == "text";
  if (text && !flags.val.empty())
    throw Failure(kExitUsage,
                  "--val: is for --task speech; the end of a text is held out, or set data.validation");
  if (!asks) return;
  if (flags.train.empty())
    flags.train = ask(text ? "Text file to train on" : "Manifest of the training clips",
                      text ? "corpus.txt" : "train.jsonl");
  if (!text && flags.val.empty()) flags.val = ask("Manifest of the validation clips", "val.jsonl");
}

void check_printable(const std::string& flag, const std::string& value) {
  if (std::ranges::any_of(value, [](unsigned char c) { return std::iscntrl(c) != 0; }))
    throw Failure(kExitUsage, flag + ": got a control character, expected the name of a file or folder");
}

// Returns the word as a shell reads it.
std::string shell_word(const std::string& word) {
  if (word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-") ==
      std::string::npos)
    return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

void init(InitFlags flags) {
  if (!flags.force && std::filesystem::exists(flags.file))
    throw Failure(kExitUsage, flags.file + " exists; give another name, or --force to replace it");
  complete(flags);
  check_printable("file", flags.file);
  check_printable("--train", flags.train);
  check_printable("--val", flags.val);
  check_printable("--output-dir", flags.output);
  const bool is_text = flags.task == "text";
  std::string text(is_text ? kStarterText : kStarterSpeech);
  // The comments at the top name the file. This comes first: a value that is inserted later may contain the
  // word.
  for (std::size_t at = text.find("FILE"); at != std::string::npos;
       at = text.find("FILE", at + flags.file.size()))
    text.replace(at, 4, flags.file);
  replace_value(text, is_text ? "train" : "train_manifest", flags.train);
  replace_value(text, "val_manifest", is_text ? "" : flags.val);
  replace_value(text, "output_dir", flags.output);
  check(octavo_train::parse(text, flags.file).status());
  check(octavo_train::write_text_file(flags.file, text));
  const std::string data = flags.train.empty() ? (is_text ? "corpus.txt" : "train.jsonl") : flags.train;
  const std::string file = shell_word(flags.file);
  std::cout << flags.file << ": a config with comments for the task " << flags.task << ". Next:\n";
  if (is_text && !std::filesystem::exists(data))
    std::cout << "  octavo data make-text " << shell_word(data) << "     or put a text of yours there\n";
  if (!is_text) std::cout << "  hf download nvidia/parakeet-tdt-0.6b-v3     the model, once\n";
  std::cout << "  octavo plan " << file << " --gpu 24GB     memory and time on a GPU of 24 GB\n"
            << "  octavo train " << file << "     Ctrl-C saves; the same command resumes\n";
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
