// See mapped_copy.h.
// SPDX-License-Identifier: MIT
#include "train/io/mapped_copy.h"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstring>

namespace octavo_train {
namespace {

// The copy that a thread is performing.
struct Copy {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  sigjmp_buf failed;
};

thread_local Copy* current_copy = nullptr;
struct sigaction action_before;

void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  const bool fault = info->si_code > 0;  // not sent by kill() or raise()
  if (fault && current_copy != nullptr && address >= current_copy->begin && address < current_copy->end)
    siglongjmp(current_copy->failed, 1);
  // After the handler returns, a fault occurs again, and the previous action handles it. A signal that was
  // sent is raised again.
  sigaction(SIGBUS, &action_before, nullptr);
  if (!fault) raise(signal);
}

bool install_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  sigemptyset(&action.sa_mask);
  // siglongjmp() leaves the handler without restoring the signal mask, so SIGBUS must not be blocked in it.
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGBUS, &action, &action_before) == 0;
}

}  // namespace

bool copy_mapped(std::span<const std::byte> from, void* to) {
  if (from.empty()) return true;
  [[maybe_unused]] static const bool installed = install_handler();
  Copy copy;
  copy.begin = from.data();
  copy.end = from.data() + from.size();
  if (sigsetjmp(copy.failed, 0) != 0) {
    current_copy = nullptr;
    return false;
  }
  current_copy = &copy;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the copy between the two stores
  std::memcpy(to, from.data(), from.size());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  current_copy = nullptr;
  return true;
}

}  // namespace octavo_train
