// The store through which the ranks of a run meet: c10d's TCPStore, served by the launcher or by rank 0. It
// listens on the loopback interface if all ranks are on one machine, else at the master's address.
//
// Calls of a store may never return, for instance when its host has lost power. A TimedStore makes them in
// another thread: the caller waits for a limited time and then continues without the call.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/rank_info.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace octavo_train {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

struct ServedStore {
  StorePointer store;
  int port = 0;
};

// Serves a store at this address of this machine. Port 0 chooses a free port. If the port is in use, the
// error names it. A client that closes its connection early does not end the process by SIGPIPE.
Result<ServedStore> serve_store(const std::string& address, int port);

// Returns the store of these ranks. Rank 0 serves it, once per process, unless the launcher does.
Result<StorePointer> open_store(const RankInfo& rank_info, std::chrono::milliseconds timeout);
// Opens another connection to the store, for another thread: a connection serves one request at a time.
Result<StorePointer> connect_store(const RankInfo& rank_info, std::chrono::milliseconds timeout);

// Returns an error if this process may not open `count` more files and sockets. Without this check c10d would
// silently try to connect until its timeout.
Status enough_descriptors(int count);

// Returns true for a numeric address that only this machine reaches.
bool is_loopback(const std::string& address);
// Returns this machine's numeric address from which `target` is reached; empty if it cannot be reached.
std::string address_towards(const std::string& target, int port);

// Blocks signals in this thread and in threads that it starts. The destructor restores the mask.
class BlockedSignals {
 public:
  explicit BlockedSignals(std::initializer_list<int> signals) {
    sigemptyset(&blocked_);
    for (const int each : signals) sigaddset(&blocked_, each);
    pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  [[nodiscard]] const sigset_t& before() const { return before_; }
  // Returns the next of these signals; 0 if none came within this time.
  [[nodiscard]] int next(std::chrono::milliseconds within) const {
    const timespec time{within.count() / 1000, within.count() % 1000 * 1'000'000};
    return std::max(sigtimedwait(&blocked_, nullptr, &time), 0);
  }

 private:
  sigset_t blocked_{}, before_{};
};

// One thread at a time may call it.
class TimedThread {
 public:
  enum class End { done, late, stopped };

  TimedThread();
  // Joins the thread, or abandons it if its call has not returned.
  ~TimedThread();
  TimedThread(const TimedThread&) = delete;
  TimedThread& operator=(const TimedThread&) = delete;

  // Runs `call` and waits until it returns, for `limit` or until `stop` returns true. Rethrows what the call
  // throws. After `late` or `stopped` the thread is lost: every later run() returns `late` immediately.
  // REQUIRES: `call` owns everything that it uses, because it may outlive the caller.
  End run(std::function<void()> call, std::chrono::milliseconds limit,
          const std::function<bool()>& stop = {});

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

class StoreTimeout : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A store whose calls end within a time limit.
class TimedStore {
 public:
  TimedStore(StorePointer store, std::chrono::milliseconds limit) : store_(std::move(store)), limit_(limit) {}

  // Returns what `call` returns for the store. Throws StoreTimeout if it took too long. REQUIRES: see run().
  template <class Call>
  auto call(Call call) {
    using Value = decltype(call(*store_));
    auto value = std::make_shared<std::optional<Value>>();
    const auto end =
        thread_.run([store = store_, value, call = std::move(call)] { *value = call(*store); }, limit_);
    if (end != TimedThread::End::done)
      throw StoreTimeout("the store did not answer within " + std::to_string(limit_.count()) + " ms");
    return std::move(**value);
  }
  void set(const std::string& key, const std::string& value) {
    call([key, value](c10d::Store& store) {
      store.set(key, value);
      return true;
    });
  }
  // Replaces `expected` by `value`. Returns the key's value afterwards.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& value) {
    return call([=](c10d::Store& store) { return store.compareSet(key, expected, value); });
  }

 private:
  StorePointer store_;
  std::chrono::milliseconds limit_;
  TimedThread thread_;
};

}  // namespace octavo_train
