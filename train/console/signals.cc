// SPDX-License-Identifier: MIT
#include "train/console/signals.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <tuple>

namespace octavo_train {
namespace {

constexpr int kLastInterrupt = 3;
// NOLINTBEGIN: a handler can use nothing else
volatile std::sig_atomic_t stop_signal = 0;
volatile std::sig_atomic_t interrupts = 0;
std::string_view first_message_;  // set before a handler is installed
// NOLINTEND

void on_signal(int signal) {
  stop_signal = signal;
  if (signal != SIGINT) return;
  interrupts = interrupts + 1;
  if (interrupts == 1) {
    const int before = errno;
    std::ignore = write(STDERR_FILENO, first_message_.data(), first_message_.size());
    errno = before;
  }
  if (interrupts < kLastInterrupt) return;
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, nullptr);
  raise(signal);
}

constexpr std::array kHandled = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ};

}  // namespace

const char* signal_name(int signal) {
  return signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGHUP";
}

StopSignals::StopSignals(const char* said) {
  first_message_ = said;
  static_assert(kHandled.size() == kSignals);
  stop_signal = 0;
  interrupts = 0;
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    const int signal = kHandled[i];
    struct sigaction action {};
    action.sa_handler = signal == SIGPIPE || signal == SIGXFSZ ? SIG_IGN : on_signal;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(signal, nullptr, &before_[i]);
    if (signal == SIGHUP && before_[i].sa_handler == SIG_IGN) continue;  // nohup
    sigaction(signal, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], &before_[i], nullptr);
}

int StopSignals::received() { return stop_signal; }

bool StopSignals::received_again() { return interrupts > 1; }

}  // namespace octavo_train
