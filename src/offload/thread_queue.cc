// A list of tasks and a thread that runs them in order. A fence has the number of tasks that were queued
// before it, and passes when that many are done. After a task has failed, later tasks are not run but count
// as done, and waiting for a later fence returns the error.
// SPDX-License-Identifier: MIT
#include "offload/thread_queue.h"

#include "cpu/affinity.h"
#include "cpu/threads.h"
#include "offload/trace.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>

namespace octavo::offload {

Status forked(const std::string& what) {
  return Status::failed("[offload] " + what +
                        ": used in a forked process, which has no part in the work of the one that made it; "
                        "use the optimizer only in the process that built it, or start workers by 'spawn'");
}

namespace {

struct Task {
  std::function<Status()> work;
  const char* label = nullptr;  // null: the task only waits
};

// The state that the thread, the queue and its fences share.
struct Core {
  const pid_t owner = getpid();
  std::string row;
  Delays delays{};
  std::mutex mutex;
  std::condition_variable more, progress;
  std::deque<Task> tasks;
  std::uint64_t queued = 0;
  std::atomic<std::uint64_t> done{0};  // written under the mutex
  Status error{};
  std::uint64_t failed = std::numeric_limits<std::uint64_t>::max();  // the number of the task with the error
  bool closing = false;
  std::thread::id worker{};

  [[nodiscard]] bool ours() const { return owner == getpid(); }
  void fail(Status status, std::uint64_t task) {
    if (!error.ok()) return;
    error = std::move(status);
    failed = task;
  }
};

class ThreadFence final : public Fence::State {
 public:
  ThreadFence(std::shared_ptr<Core> core, std::uint64_t tasks) : core_(std::move(core)), tasks_(tasks) {}

  // In a forked process the thread does not exist, so every fence has passed.
  [[nodiscard]] bool passed() const override {
    return core_->done.load(std::memory_order_acquire) >= tasks_ || !core_->ours();
  }
  Status wait() const override {
    if (!core_->ours()) return forked("a fence of the queue '" + core_->row + "'");
    std::unique_lock lock(core_->mutex);
    if (core_->done < tasks_ && core_->worker == std::this_thread::get_id())
      return Status::failed("[offload] the queue '" + core_->row + "' was asked to wait for itself");
    core_->progress.wait(lock, [&] { return core_->done >= tasks_; });
    return core_->failed <= tasks_ ? core_->error : Status();
  }
  [[nodiscard]] bool of(const Core* core) const { return core_.get() == core; }

 private:
  std::shared_ptr<Core> core_;
  std::uint64_t tasks_;
};

Status run_guarded(const Task& task) {
  try {
    return task.work();
  } catch (const std::exception& error) {
    return Status::failed("[offload] " + std::string(task.label == nullptr ? "wait" : task.label) + ": " +
                          error.what());
  }
}

void run_tasks(Core& core) {
  const cpu_set_t cpus = cpu::process_cpus();
  (void)sched_setaffinity(0, sizeof cpus,
                          &cpus);  // the parent thread may be bound to one CPU; an empty set is an error
  (void)pthread_setname_np(pthread_self(), core.row.substr(0, 15).c_str());  // for debuggers
  const cpu::FloatMode mode;
  std::unique_lock lock(core.mutex);
  core.worker = std::this_thread::get_id();
  for (;;) {
    core.more.wait(lock, [&] { return core.closing || !core.tasks.empty(); });
    if (core.tasks.empty()) return;
    Status status;
    {
      const Task task = std::move(core.tasks.front());
      core.tasks.pop_front();
      const bool runs = core.error.ok();
      lock.unlock();
      if (runs) {
        core.delays.sleep();
        const TraceScope scope(core.row, task.label);
        status = run_guarded(task);
      }
    }  // the task is destroyed before later fences pass
    lock.lock();
    const std::uint64_t number = core.done.load(std::memory_order_relaxed) + 1;
    if (!status.ok()) core.fail(std::move(status), number);
    core.done.store(number, std::memory_order_release);
    core.progress.notify_all();
  }
}

class ThreadQueue final : public Queue {
 public:
  ThreadQueue(std::string row, Result<Delays> delays) : core_(std::make_shared<Core>()) {
    core_->row = std::move(row);
    if (!delays.ok()) {
      core_->fail(delays.status(), 0);
    } else {
      core_->delays = *delays;
    }
    try {
      thread_ = std::make_unique<std::thread>([core = core_] { run_tasks(*core); });
    } catch (const std::system_error& error) {
      core_->fail(Status::failed("[offload] a thread for the queue '" + core_->row + "': " + error.what()),
                  0);
    }
  }

  ~ThreadQueue() override {
    if (!core_->ours()) {
      // The thread does not exist here, and a lock that it held is never released. So nothing is touched.
      (void)thread_.release();
      (void)new std::shared_ptr<Core>(std::move(core_));  // NOLINT(cppcoreguidelines-owning-memory)
      return;
    }
    if (thread_ == nullptr) return;
    {
      const std::lock_guard lock(core_->mutex);
      core_->closing = true;
    }
    core_->more.notify_one();
    thread_->join();
  }

  Status copy(void* to, const void* from, std::int64_t bytes, const char* label) override {
    return push({[to, from, bytes] {
                   if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
                   return Status();
                 },
                 label});
  }
  Status run(std::function<Status(void* stream)> work, const char* label) override {
    return push({[work = std::move(work)] { return work(nullptr); }, label});
  }
  Result<Fence> record_fence() override {
    if (!core_->ours()) return forked("the queue '" + core_->row + "'");
    const std::lock_guard lock(core_->mutex);
    if (!core_->error.ok()) return core_->error;
    return Fence(std::make_shared<ThreadFence>(core_, core_->queued));
  }
  Status order_after(const Fence& fence) override {
    const auto* own = dynamic_cast<const ThreadFence*>(fence.state());
    if (fence.state() == nullptr || (own != nullptr && own->of(core_.get()))) return {};
    return push({[fence] { return fence.wait(); }, nullptr});
  }

 private:
  Status push(Task task) {
    if (!core_->ours()) return forked("the queue '" + core_->row + "'");
    {
      const std::lock_guard lock(core_->mutex);
      if (!core_->error.ok()) return core_->error;
      core_->tasks.push_back(std::move(task));
      ++core_->queued;
    }
    core_->more.notify_one();
    return {};
  }

  std::shared_ptr<Core> core_;
  std::unique_ptr<std::thread> thread_;  // on the heap, so that a forked process can leak it
};

}  // namespace

std::unique_ptr<Queue> make_thread_queue(std::string row, Result<Delays> delays) {
  return std::make_unique<ThreadQueue>(std::move(row), std::move(delays));
}

}  // namespace octavo::offload
