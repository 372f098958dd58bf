// Work on tensors that was queued, and how its time is measured.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/monitor.h"
#include "train/distributed/world.h"

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace octavo::train {

struct Pending::State {
  State(c10::intrusive_ptr<c10d::Work> queued, std::vector<torch::Tensor> used, const torch::Device& where,
        std::shared_ptr<Monitor> watched);

  // May be called again: what comes after the work is done once.
  void wait();
  // Whether it has been waited for and is done, so that its time is known.
  [[nodiscard]] bool is_over();
  // For what has been waited for: the time of the operation, and how much of it nothing hid. Waits.
  [[nodiscard]] double seconds();
  [[nodiscard]] double waited();

  c10::intrusive_ptr<c10d::Work> work;
  std::vector<torch::Tensor> tensors;  // alive until the work is done
  torch::Device device;
  std::shared_ptr<Monitor> monitor;
  std::function<void()> afterwards;  // what is left to do on the host when it is done

 private:
  using Clock = std::chrono::steady_clock;
  void wait_on_host();
  void wait_on_stream();

  // On the host. Shared with what is called when the work is done, which may be after this is gone.
  struct Done {
    std::atomic<bool> is{false};
    Clock::time_point at;
  };
  std::shared_ptr<Done> done_;
  Clock::time_point begin_;
  double waited_ = 0;
  // On a GPU: around the first wait of the current stream.
  std::optional<c10::Event> before_, after_;
};

// Waits for work of hosts.
void wait_for_hosts(const c10::intrusive_ptr<c10d::Work>& work, const std::shared_ptr<Monitor>& monitor);

}  // namespace octavo::train
