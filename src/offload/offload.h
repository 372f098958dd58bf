// Everything that an engine owns for tensors whose states are in host memory: the queues and staging memory
// of each device, the engine's host memory, and gradients and parameters there. The engine registers the
// tensors (OffloadedTensor) and calls this class; fences stay here.
//
// A step waits for what the tensors' previous step has queued: their weights are up to date before they
// change again, and host gradients have been read before others overwrite them.
// Threads: used by the thread that uses the engine.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/host_grads.h"
#include "offload/host_params.h"
#include "offload/offloaded_step.h"
#include "offload/offloaded_tensor.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo::offload {

using Tensors = std::span<OffloadedTensor* const>;

// A step of tensors of one device and residence, which `step` was made for.
struct CohortStep {
  OffloadedStep& step;
  Device device;
  Residence residence;
  Tensors tensors;
  // Tensor i's gradient and its dtype are at indices[i]. Those of host gradients are not read.
  std::span<const std::uint32_t> indices;
  std::span<const void* const> grads;
  std::span<const DType> dtypes;
  std::span<std::byte> staging;  // at least staging_bytes of the step
};

class Offload {
 public:
  // `name` is the engine's name in messages.
  explicit Offload(std::string name) : name_(std::move(name)) {}
  ~Offload() { (void)synchronize(); }
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // Returns an error in a forked process, and after queued work has failed.
  [[nodiscard]] Status check_usable() const;
  // Blocks until no queue has work. Before tensors, orders or plans change, and before memory is freed.
  Status synchronize();

  HostArena& memory() { return memory_; }
  HostGrads& grads() { return grads_; }

  // --- Registered tensors ---

  // Blocks until the host queue has advanced the tensor's step count.
  Status wait_for_count(const OffloadedTensor& tensor);
  // Orders `stream` after the tensors' weights are up to date, or their device gradients have been read. On
  // the CPU these block. The tensors are of one device.
  Status order_after_weights(Device device, void* stream, Tensors tensors);
  Status order_after_grads(Device device, void* stream, Tensors tensors);
  // Orders `stream` after the staging memory's last use.
  Status order_after_staging(Device device, void* stream);
  // Orders `stream` after all work of the device's queues that writes weights.
  Status order_after_all(Device device, void* stream);
  // Copies parameters of tensors with Residence::host, in the order of `stream`.
  Status refresh_params(Device device, void* stream, Tensors tensors, ParamCopy direction);
  // Copies one gradient per tensor to host memory, in the order of `stream`. `all`: see HostGrads::reserve.
  // `failed_tensor` receives the handle of the tensor that could not be copied.
  Status offload_grads(Device device, void* stream, Tensors tensors, std::span<const void* const> grads,
                       std::span<const DType> dtypes, Tensors all, std::int64_t& failed_tensor);
  Status norm(const NormCall& call);

  // --- Steps ---

  Result<std::unique_ptr<OffloadedStep>> make_step(const GroupConfig& config, Residence residence,
                                                   std::span<const StepTensor> tensors,
                                                   std::span<std::int64_t* const> counts);
  // Queues one step. `args` has the caller's stream and scalars in device memory. The report is not written
  // by steps on the CPU, whose caller knows it before.
  Status step(const CohortStep& cohort, StepArgs args);

 private:
  // Scalars of steps on the CPU are copied to slots in host memory, which are used in turn. So up to kSlots
  // gradients can be released while the CPU's work is late; then the queue waits.
  struct HostScalars {
    static constexpr std::size_t kSlots = 1024;
    static constexpr std::int64_t kSlotBytes = 64;
    HostBuffer memory;
    std::vector<Fence> read;  // of each slot
    std::size_t slot = 0;
  };
  struct DeviceState {
    Device device;
    std::unique_ptr<DeviceQueues> queues;
    std::unique_ptr<Staging> staging;
    HostScalars scalars;
  };

  DeviceState* find(Device device);
  // Makes the queues of a device at their first use.
  Result<DeviceState*> get(Device device);
  Status drain();
  Result<Fence> copy_scalars_down(DeviceState& state, StepArgs& args);
  Status copy_down(const CohortStep& cohort, DeviceQueues& queues, const Fence& caller);

  const std::string name_;
  // Later members use earlier ones.
  HostArena memory_;
  QueueErrors errors_;
  HostGrads grads_{memory_, errors_};
  std::vector<std::unique_ptr<DeviceState>> devices_;
  std::int64_t process_ = 0;  // the process that made the queues
};

}  // namespace octavo::offload
