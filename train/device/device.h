// Chooses the ranks and the device that a config asks for, and provides the device's properties and a
// stopwatch. It uses only torch's generic interfaces, so that one source serves CPU and CUDA builds.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/config/settings.h"
#include "train/distributed/rank_info.h"

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace octavo_train {

// Returns the requested device. `auto` is a CUDA device if there is one. A named device that is missing is an
// error.
Result<torch::Device> choose_device(const DeviceName& wanted);

// Returns this process's place, from its environment. If num_gpus is set, it must be the number of ranks on
// this machine, or of all ranks.
Result<RankInfo> rank_info_of(const Config& config);

// Returns true if the command must start ranks itself: several are requested, and this process is not one of
// them.
bool starts_ranks(const Config& config, const RankInfo& place);
// Checks that this machine has the devices for the ranks to be started, and that the ranks can divide a step.
// Nothing is allocated on a GPU.
Status can_start_ranks(const Config& config);

// Returns the rank's device: its own GPU, or the CPU. Without a group it is the device of the settings.
Result<torch::Device> rank_device(const Config& config, const RankInfo& place);

// Returns an error, with the fix, if this build has no kernels for the device, which is the CPU or a GPU.
Status check_backend(const torch::Device& device);

// Returns true if the device computes in bfloat16: the CPU, and GPUs of compute capability 8.0 or higher.
bool has_bf16(const torch::Device& device);

std::string device_text(const torch::Device& device);  // "cuda:0 NVIDIA H200", "cpu (8 threads)"

// Waits until all work queued on the device is done.
void wait_for(const torch::Device& device);

// Seeds torch's generators from (seed, step, micro-batch `pass`) alone. So a checkpoint needs no generator
// state, and an evaluation or a sample does not change later random numbers.
void seed_random(std::int64_t seed, std::int64_t step, std::int64_t pass);

// Measures the time between two points of the device's work. The host waits only in seconds().
class Stopwatch {
 public:
  explicit Stopwatch(const torch::Device& device);
  ~Stopwatch();
  Stopwatch(Stopwatch&&) noexcept;
  Stopwatch& operator=(Stopwatch&&) noexcept;

  void start();
  void stop();
  // Waits for the work before stop() and returns the time in seconds.
  [[nodiscard]] double seconds() const;

 private:
  struct Events;
  torch::Device device_;
  std::chrono::steady_clock::time_point begin_, end_;  // on the CPU
  std::unique_ptr<Events> events_;                     // on other devices
};

}  // namespace octavo_train
