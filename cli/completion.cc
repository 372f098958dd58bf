// Implements tab completion; see completion.h.
// SPDX-License-Identifier: MIT
#include "cli/completion.h"

#include "cli/cli.h"
#include "cli/command.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string_view>

namespace octavo::cli {
namespace {

constexpr std::string_view kBash = R"(_octavo() {
  local IFS=$'\n' words
  words=$(octavo __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  if [[ -n $words ]]; then COMPREPLY=($words); else compopt -o default; COMPREPLY=(); fi
}
complete -F _octavo octavo
)";
constexpr std::string_view kZsh = R"(#compdef octavo
_octavo() {
  local -a found
  found=("${(@f)$(octavo __complete -- "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
  if [[ -n $found[1] ]]; then compadd -- $found; else _files; fi
}
compdef _octavo octavo
)";
constexpr std::string_view kFish = R"(function __octavo_complete
  set -l words (commandline -opc) (commandline -ct)
  set -l found (octavo __complete -- $words[2..-1] 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c octavo -f -a '(__octavo_complete)'
)";

std::vector<std::string> starting_with(std::vector<std::string> words, std::string_view begin) {
  std::erase_if(words, [&](const std::string& word) { return !word.starts_with(begin); });
  std::ranges::sort(words);
  return words;
}

// Returns the option of `app` that has this name, or null.
const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  return name.starts_with('-') ? app.get_option_no_throw(name) : nullptr;
}

const CLI::App* find_subcommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; }))
    if (each->get_name() == name) return each;
  return nullptr;
}

}  // namespace

std::vector<std::string> complete_words(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  const std::string last = words.empty() ? "" : words.back();
  std::string before;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    before = words[i];
    if (const CLI::App* next = find_subcommand(*at, words[i]); next != nullptr) at = next;
  }
  if (const CLI::Option* option = find_option(*at, before); option != nullptr && option->get_type_size() != 0)
    return starting_with(choices_of(*option), last);
  std::vector<std::string> found;
  if (last.starts_with('-')) {
    for (const CLI::Option* option : at->get_options()) {
      if (option->get_group().empty()) continue;  // hidden
      for (const std::string& name : option->get_lnames()) found.push_back("--" + name);
    }
    return starting_with(found, last);
  }
  for (const CLI::App* each : at->get_subcommands([](const CLI::App*) { return true; }))
    if (!each->get_group().empty()) found.push_back(each->get_name());
  return starting_with(found, last);
}

void add_completion(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "Print a script for tab completion");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "The shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->group("Shell");
  command->footer(R"(For example:
  source <(octavo completion bash)                                 in ~/.bashrc
  source <(octavo completion zsh)                                  in ~/.zshrc, after compinit
  octavo completion fish > ~/.config/fish/completions/octavo.fish)");
  command->callback([shell] { std::cout << (*shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish); });

  CLI::App* complete = app.add_subcommand("__complete", "Print the candidates for the last word");
  complete->group("");  // hidden
  auto words = std::make_shared<std::vector<std::string>>();
  complete->add_option("words", *words, "The words of the command line");
  complete->callback([&app, words] {
    for (const std::string& each : complete_words(app, *words)) std::cout << each << '\n';
  });
}

}  // namespace octavo::cli
