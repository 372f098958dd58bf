// Where a run computes: the ranks and the device that a config asks for, the device's properties and its
// clock. It uses only torch's generic interfaces, so that one source serves CPU and CUDA builds.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"
#include "train/config/settings.h"
#include "train/distributed/rank_info.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace octavo::train {

// `auto` is a CUDA device where there is one. A device that is named and missing is an error.
Result<torch::Device> choose_device(const DeviceName& wanted);

// This process's place, from its environment. A num_gpus that is given must be the number of ranks on this
// machine, or of all.
Result<Place> place_of(const Config& config);

// Whether the command starts ranks of its own: several are asked for, and this process is none of them.
bool starts_ranks(const Config& config, const Place& place);
// Whether this machine has what the ranks to be started need, and they can divide a step. Nothing is
// allocated on a GPU.
Status can_start_ranks(const Config& config);

// The rank's device: a GPU of its own, or the CPU. Without a group: what the settings name.
Result<torch::Device> rank_device(const Config& config, const Place& place);

// Whether Octavo's optimizers have code for the device in this build.
bool has_backend(const torch::Device& device);

// Returns true if the device computes in bfloat16: the CPU, and GPUs of compute capability 8.0 or higher.
bool has_bf16(const torch::Device& device);

std::string device_text(const torch::Device& device);  // "cuda:0 NVIDIA H200", "cpu (8 threads)"

// The first line of what an error of torch says: no backtrace.
std::string error_text(const c10::Error& error);

// Waits until all work queued on the device is done.
void wait_for(const torch::Device& device);

// Seeds the generators from (seed, step, pass) alone. So a checkpoint needs no generator state, and an
// evaluation or a sample does not change later random numbers.
void seed_random(std::int64_t seed, std::int64_t step, std::int64_t pass);

// Measures the time between two points of the device's work. The host does not wait for them.
class Stopwatch {
 public:
  explicit Stopwatch(const torch::Device& device);
  ~Stopwatch();
  Stopwatch(Stopwatch&&) noexcept;
  Stopwatch& operator=(Stopwatch&&) noexcept;

  void start();
  void stop();
  // Waits for the work before stop().
  [[nodiscard]] double seconds() const;

 private:
  struct Events;
  torch::Device device_;
  std::chrono::steady_clock::time_point begin_, end_;  // on the CPU
  std::unique_ptr<Events> events_;                     // elsewhere
};

}  // namespace octavo::train
