// Progress lines; see progress.h.
// SPDX-License-Identifier: MIT
#include "cli/progress.h"

#include "train/base/terminal_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>

namespace octavo::cli {

namespace {

// Returns the parts of `line` that fit into `width` columns. Two blanks separate parts; only the first part
// is ever cut.
std::string_view fitted(std::string_view line, std::size_t width) {
  if (line.size() <= width) return line;
  const std::size_t end = line.rfind("  ", width);
  return line.substr(0, end == std::string_view::npos || end == 0 ? width : end);
}

}  // namespace

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}
Progress::~Progress() { clear(); }

void Progress::clear() {
  if (terminal_) std::cerr << "\r\033[K" << std::flush;
}

bool Progress::due(std::chrono::seconds on_terminal, std::chrono::seconds elsewhere) const {
  return !printed_at_ ||
         std::chrono::steady_clock::now() - *printed_at_ >= (terminal_ ? on_terminal : elsewhere);
}

void Progress::say(std::string_view what) {
  printed_at_ = std::chrono::steady_clock::now();
  clear();
  // A line that wraps could not be overwritten.
  winsize size{};
  if (terminal_ && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    what = fitted(what, size.ws_col - 1U);
  std::cerr << what;
  if (terminal_)
    std::cerr << std::flush;
  else
    std::cerr << '\n';
}

void Progress::note(std::string_view what) {
  clear();
  std::cerr << octavo_train::terminal_text(what) << '\n';
}

}  // namespace octavo::cli
