// SPDX-License-Identifier: MIT
#include "train/distributed/timed_thread.h"

#include <condition_variable>
#include <exception>
#include <mutex>

namespace octavo_train {

// Shared with the thread, which may outlive the TimedThread.
struct TimedThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;  // empty: the thread is idle
  std::exception_ptr thrown;
  bool lost = false, quit = false;

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return call || quit; });
      if (!call) return;
      lock.unlock();
      std::exception_ptr caught;
      try {
        call();
      } catch (...) {
        caught = std::current_exception();
      }
      lock.lock();
      call = nullptr;
      thrown = std::move(caught);
      changed.notify_all();
      if (lost) return;
    }
  }
};

TimedThread::TimedThread()
    : state_(std::make_shared<State>()), thread_([state = state_] { state->serve(); }) {}

TimedThread::~TimedThread() {
  bool busy = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->quit = true;
    busy = static_cast<bool>(state_->call);
    state_->lost |= busy;
  }
  state_->changed.notify_all();
  if (busy) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

TimedThread::End TimedThread::run(std::function<void()> call, std::chrono::milliseconds limit,
                                  const std::function<bool()>& stop) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook{50};  // between two calls of `stop`
  const auto end = Clock::now() + limit;
  std::unique_lock lock(state_->mutex);
  if (state_->lost) return End::late;
  state_->call = std::move(call);
  state_->changed.notify_all();
  const auto returned = [&] { return !state_->call; };
  while (!returned()) {
    const auto next = stop ? std::min(end, Clock::now() + kLook) : end;
    if (state_->changed.wait_until(lock, next, returned)) break;
    const bool stopped = stop && stop();
    if (!stopped && Clock::now() < end) continue;
    state_->lost = true;
    return stopped ? End::stopped : End::late;
  }
  if (const std::exception_ptr thrown = std::exchange(state_->thrown, nullptr))
    std::rethrow_exception(thrown);
  return End::done;
}

}  // namespace octavo_train
