// Parses the command line, prints help and errors; see command.h.
// SPDX-License-Identifier: MIT
#include "cli/command.h"

#include "cli/cli.h"
#include "cli/completion.h"
#include "cli/table.h"
#include "train/base/edit_distance.h"
#include "train/base/terminal_text.h"

#include <octavo/backend.h>

#include <CLI/CLI.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace octavo::cli {
namespace {

constexpr std::size_t kColumn = 30;  // column where the descriptions begin
constexpr double kNoMaximum = 1e15;  // larger maximums are only the limit of the type

std::string wrapped_line(const std::string& line, std::size_t indent) {
  return wrapped(line, output_width(), indent) + '\n';
}

std::string entry(const std::string& name, const std::string& sentence) {
  const std::string left = "  " + name;
  if (left.size() + 2 > kColumn)
    return wrapped_line(left, 4) + wrapped_line(std::string(kColumn, ' ') + sentence, kColumn);
  return wrapped_line(left + std::string(kColumn - left.size(), ' ') + sentence, kColumn);
}

// CLI11 joins a type and its check into one text: "INT:INT in [0 - 100]".
struct Type {
  std::string name, check;
};

Type type_of(const CLI::Option& option) {
  const std::string text = option.get_type_name();
  const std::size_t colon = std::min(text.find(':'), text.size());
  return {text.substr(0, colon), text.substr(std::min(colon + 1, text.size()))};
}

// Returns "0 to 100" for "INT in [0 - 100]", and "at least 0" if the maximum is only the limit of the type.
std::string range_of(const std::string& check) {
  if (check == "POSITIVE") return "above 0";
  if (check == "NONNEGATIVE") return "at least 0";
  const std::size_t open = check.find('['), middle = check.find(" - ", open), close = check.find(']', open);
  if (close == std::string::npos || middle == std::string::npos) return {};
  const std::string low = check.substr(open + 1, middle - open - 1),
                    high = check.substr(middle + 3, close - middle - 3);
  return std::stod(high) > kNoMaximum ? "at least " + low : low + " to " + high;
}

std::string default_of(const CLI::Option& option) {
  std::string out = option.get_default_str();
  if (out.starts_with('[') && out.ends_with(']')) out = out.substr(1, out.size() - 2);  // a list
  return out;
}

// Returns the end of an option's line: " (0 to 100; default: 10)".
std::string notes_of(const CLI::Option& option) {
  std::vector<std::string> notes;
  if (const std::string range = range_of(type_of(option).check); !range.empty()) notes.push_back(range);
  if (const std::string value = default_of(option); !value.empty()) notes.push_back("default: " + value);
  for (const CLI::Option* other : option.get_excludes()) notes.push_back("not with " + other->get_name());
  std::string out;
  for (const std::string& note : notes) out += (out.empty() ? " (" : "; ") + note;
  return out.empty() ? out : out + ")";
}

// Keeps lines that begin with a blank, and joins the others to paragraphs that fill the width.
std::string filled(const std::string& text) {
  std::string out, paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) out += wrapped_line(std::exchange(paragraph, {}), 0);
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (!line.empty() && line.front() != ' ') {
      paragraph += (paragraph.empty() ? "" : " ") + line;
      continue;
    }
    end_paragraph();
    out += wrapped_line(line, std::min(line.find_first_not_of(' '), line.size()) + 4);
  }
  end_paragraph();
  return out;
}

// Formats the text of --help to the width of the terminal: names and values of options on the left,
// descriptions on the right.
class HelpFormatter : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_help(const CLI::App* app, std::string name,
                                      CLI::AppFormatMode mode) const override;
  [[nodiscard]] std::string make_subcommand(const CLI::App* sub) const override;
  [[nodiscard]] std::string make_option(const CLI::Option* option, bool is_positional) const override;
  [[nodiscard]] std::string make_option_usage(const CLI::Option* option) const override;
};

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string usage = make_usage(app, std::move(name));
  while (usage.ends_with('\n')) usage.pop_back();
  const std::string out = filled(make_description(app)) + wrapped_line(usage, 4) + make_positionals(app) +
                          make_groups(app, mode) + make_subcommands(app, mode);
  const std::string footer = app->get_footer();
  return footer.empty() ? out : out + '\n' + filled(footer);
}

// A subcommand's line, and the first example of its own help.
std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  const std::string footer = sub->get_footer();
  const std::string begin = "For example:\n  ";
  std::string out = entry(sub->get_name(), sub->get_description());
  if (!footer.starts_with(begin)) return out;
  const std::string line = footer.substr(begin.size(), footer.find('\n', begin.size()) - begin.size());
  return out + wrapped_line(std::string(kColumn, ' ') + line.substr(0, line.find("   ")), kColumn);
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const Type type = type_of(*option);
  const std::string choices = octavo_train::joined(choices_of(*option), "|");
  std::string name = make_option_name(option, is_positional);
  const bool takes_value = option->get_type_size() != 0;
  if (takes_value && !is_positional) name += " " + (choices.empty() ? type.name : choices);
  const std::string sentence = option->get_description();
  return entry(name, sentence + (takes_value || !option->get_excludes().empty() ? notes_of(*option) : ""));
}

std::string HelpFormatter::make_option_usage(const CLI::Option* option) const {
  const std::string out = make_option_name(option, true) +
                          (option->get_expected_max() >= CLI::detail::expected_max_vector_size ? "..." : "");
  const bool required = option->get_required() || option->get_option_text() == kRequiredText;
  return required ? out : "[" + out + "]";
}

// Prints "octavo: MESSAGE" on stderr and returns `exit_code`. An empty message means that another process has
// printed it.
int complain(int exit_code, std::string message) {
  if (message.empty()) return exit_code;
  while (!message.empty() && message.back() == '\n') message.pop_back();
  // A message may contain names and values from a file. Control characters in them must not reach the
  // terminal.
  std::cerr << "octavo: " << octavo_train::terminal_text(message) << '\n';
  return exit_code;
}

// Returns the error in the command line and the --help that explains it. Clearer messages replace some of
// CLI11's.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;  // the subcommand that found an unknown argument, or the last one given
  std::string path = "octavo";
  while (at->remaining().empty() && !at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += ' ' + at->get_name();
  }
  std::vector<std::string> known;
  for (const CLI::App* each :
       at->get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); }))
    known.push_back(each->get_name());
  const std::string expected = (known.size() > 1 ? "one of " : "") + joined(known);
  std::vector<std::string> options;
  for (const CLI::Option* each : at->get_options())
    for (const std::string& name : each->get_lnames()) options.push_back("--" + name);
  const auto suggestion = [](const std::string& word, const std::vector<std::string>& names) {
    const std::string like = octavo_train::most_similar(word.substr(0, word.find('=')), names);
    return like.empty() ? "" : "; did you mean " + like + "?";
  };
  const std::vector<std::string> extras = at->remaining();
  const auto option =
      std::find_if(extras.begin(), extras.end(), [](const auto& each) { return each.starts_with('-'); });

  std::string what = error.what();
  const std::string flag = what.substr(0, what.find(':'));
  if (option != extras.end())
    what = "unknown option '" + *option + '\'' + suggestion(*option, options);
  else if (!extras.empty() && !known.empty())
    what = "unknown subcommand '" + extras.front() + "', expected " + expected +
           suggestion(extras.front(), known);
  else if (!extras.empty())
    what = "unexpected argument '" + extras.front() + '\'';
  else if (!known.empty())
    what = "a subcommand is missing, expected " + expected;
  else if (what.ends_with(" missing"))  // "--state: 1 required TEXT missing"
    what = flag + ": expected a value";
  else if (what.find("At Most 1 required") != std::string::npos)
    what = flag + ": given more than once";
  return what + " (see " + path + " --help)";
}

int parse_and_run(int argc, char** argv, const AddSubcommands& add_subcommands) {
  CLI::App app("Octavo: low-bit optimizers, and training with them.", "octavo");
  app.set_version_flag("--version", std::string(version()), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  add_subcommands(app);
  add_completion(app);
  if (argc <= 1) {
    std::cout << app.help();
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(kExitUsage, usage_message(app, error));
  }
  std::cout.flush();
  if (!std::cout) return complain(kExitFailure, "could not write the output");
  return 0;
}

// Opens /dev/null as each of the descriptors 0 to 2 that was closed when the program started. Otherwise the
// first files that the program opens get these numbers, and console lines are written into them.
void reserve_standard_descriptors() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    // open() returns the lowest free number.
    if (fcntl(number, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != number) return;
  }
}

std::string thread_message(const std::system_error& error) {
  return "a thread could not be started (" + error.code().message() +
         "); raise the limit on processes and threads (ulimit -u, or the container's)";
}

}  // namespace

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string check = type_of(option).check;
  std::vector<std::string> out;
  if (!check.starts_with('{')) return out;
  std::stringstream list(check.substr(1, check.find('}') - 1));
  for (std::string each; std::getline(list, each, ',');) out.push_back(each);
  return out;
}

int run_command(int argc, char** argv, const AddSubcommands& add_subcommands) {
  reserve_standard_descriptors();
  try {
    return parse_and_run(argc, argv, add_subcommands);
  } catch (const Failure& failure) {
    return complain(failure.exit_code(), failure.what());
  } catch (const std::bad_alloc&) {
    return complain(kExitFailure, "out of memory");
  } catch (const std::system_error& error) {
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    return complain(kExitFailure, no_thread ? thread_message(error) : error.what());
  } catch (const std::exception& error) {
    return complain(kExitFailure, error.what());
  }
}

}  // namespace octavo::cli
