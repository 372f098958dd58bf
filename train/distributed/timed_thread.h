// A thread for calls that may never return, such as those of c10d's store when its host has lost power: the
// caller waits for a limited time and then continues without the call.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/store.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace octavo_train {

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
    if (end != TimedThread::End::done) {
      throw StoreTimeout("the store did not answer within " + std::to_string(limit_.count()) + " ms");
    }
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
