// Formats the text of --help to the width of the terminal: names and values of options on the left,
// descriptions on the right.
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace octavo::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_help(const CLI::App* app, std::string name,
                                      CLI::AppFormatMode mode) const override;
  [[nodiscard]] std::string make_subcommand(const CLI::App* sub) const override;
  [[nodiscard]] std::string make_option(const CLI::Option* option, bool is_positional) const override;
  [[nodiscard]] std::string make_option_usage(const CLI::Option* option) const override;
};

// Marks a positional argument as required in the help although CLI11 does not check it.
inline constexpr const char* kRequiredText = "REQUIRED";

}  // namespace octavo::cli
