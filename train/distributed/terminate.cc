// SPDX-License-Identifier: MIT
#include "train/distributed/terminate.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

namespace octavo_train {
namespace {

int g_rank = 0;  // NOLINT: a handler has no arguments

void print(const char* what) {
  char line[1024];
  const int length = std::snprintf(line, sizeof line, "octavo: rank %d: %s\n", g_rank, what);
  const auto size = static_cast<std::size_t>(length);
  const ssize_t written = write(STDERR_FILENO, line, size < sizeof line ? size : sizeof line - 1);
  static_cast<void>(written);
}

[[noreturn]] void end() {
  std::signal(SIGABRT, SIG_DFL);
  std::set_terminate(std::abort);
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    print(
        "a thread could not be started or ended; memory or threads may be exhausted (ulimit -v, ulimit -u)");
  } catch (const std::bad_alloc&) {
    print("out of memory on the host");
  } catch (const std::exception& error) {
    print(error.what());
  } catch (...) {
    print("ended by an unknown exception");
  }
  std::abort();
}

}  // namespace

void print_before_terminate(int rank) {
  g_rank = rank;
  std::set_terminate(end);
}

}  // namespace octavo_train
