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

}  // namespace

StopSignals::StopSignals() {
  asked = 0;
  struct sigaction action {};
  action.sa_handler = ask;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &interrupt_before_);
  sigaction(SIGTERM, &action, &terminate_before_);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
}

int StopSignals::received() { return asked; }

}  // namespace octavo::train
