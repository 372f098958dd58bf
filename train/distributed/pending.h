// Queued work on tensors, and the measurement of its time.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/process_group.h"
#include "train/distributed/watchdog.h"

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace octavo_train {

struct Pending::State {
  State(c10::intrusive_ptr<c10d::Work> queued, std::vector<torch::Tensor> used, const torch::Device& where,
        std::shared_ptr<Watchdog> watched);

  // May be called again: `afterwards` runs only once.
  void wait();
  // Returns true if the work was waited for and is done, so that its time is known.
  [[nodiscard]] bool is_over();
  // For work that was waited for: the seconds of the operation, and how many of them were not hidden by other
  // work. Both wait for the work.
  [[nodiscard]] double seconds();
  [[nodiscard]] double waited();

  c10::intrusive_ptr<c10d::Work> work;
  std::vector<torch::Tensor> tensors;  // kept alive until the work is done
  torch::Device device;
  std::shared_ptr<Watchdog> monitor;
  std::function<void()> afterwards;  // the remaining host work after the operation

 private:
  using Clock = std::chrono::steady_clock;
  void wait_on_host();
  void wait_on_stream();

  // State on the CPU, shared with the completion callback, which may run after this object is destroyed.
  struct Done {
    std::atomic<bool> is{false};
    Clock::time_point at;
  };
  std::shared_ptr<Done> done_;
  Clock::time_point begin_;
  double waited_ = 0;
  // Events on a GPU, before and after the first wait of the current stream.
  std::optional<c10::Event> before_, after_;
};

// Waits for work of the hosts' group.
void wait_for_hosts(const c10::intrusive_ptr<c10d::Work>& work, const std::shared_ptr<Watchdog>& monitor);

}  // namespace octavo_train
