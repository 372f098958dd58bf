// Progress lines; see progress.h.
// SPDX-License-Identifier: MIT
#include "progress.h"

#include "train/format/terminal_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>

namespace octavo::cli {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}
Progress::~Progress() { clear(); }

void Progress::clear() {
  if (terminal_) std::cerr << "\r\033[K" << std::flush;
}

void Progress::say(std::string_view what) {
  clear();
  // A line that wraps could not be overwritten.
  winsize size{};
  if (terminal_ && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    what = what.substr(0, size.ws_col - 1U);
  std::cerr << what;
  if (terminal_)
    std::cerr << std::flush;
  else
    std::cerr << '\n';
}

void Progress::note(std::string_view what) {
  clear();
  std::cerr << train::terminal_text(what) << '\n';
}

}  // namespace octavo::cli
