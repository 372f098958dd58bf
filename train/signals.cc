// SPDX-License-Identifier: MIT
#include "signals.h"

namespace octavo::train {
namespace {

volatile std::sig_atomic_t asked = 0;  // NOLINT: a handler can reach nothing else

void ask(int signal) {
  if (signal == SIGINT && asked == SIGINT) {  // again: no patience left
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);
    raise(signal);
  }
  asked = signal;
}

constexpr std::array kHandled = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ};

}  // namespace

StopSignals::StopSignals() {
  static_assert(kHandled.size() == kSignals);
  asked = 0;
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    const int signal = kHandled[i];
    struct sigaction action {};
    action.sa_handler = signal == SIGPIPE || signal == SIGXFSZ ? SIG_IGN : ask;
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

int StopSignals::received() { return asked; }

}  // namespace octavo::train
