// SPDX-License-Identifier: MIT
#include "apps/octavo/config_file.h"

#include "apps/octavo/help.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace octavo::cli {

std::function<void()> add_config_file(CLI::App& command, std::string& file,
                                      std::vector<std::string>& overrides) {
  const auto option = std::make_shared<std::string>();
  command.add_option("file", file, "The run's config: docs/config.md has every key")
      ->option_text(kRequiredText);
  command.add_option("overrides", overrides, "key=value: settings that replace those of the file");
  command.add_option("--config", *option, "The run's config, instead of the first word")->type_name("FILE");
  return [option, &file, &overrides] {
    if (option->empty()) return;
    // Without a preceding file argument, CLI11 has parsed the first override as the file.
    if (!file.empty() && file.find('=') == std::string::npos) {
      throw CLI::ValidationError("the config is given twice, as " + file + " and as --config " + *option +
                                 "; give one of them");
    }
    if (!file.empty()) overrides.insert(overrides.begin(), file);
    file = *option;
  };
}

}  // namespace octavo::cli
