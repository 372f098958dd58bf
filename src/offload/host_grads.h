// Gradients of offloaded tensors in host memory: their memory, their accumulation, and norms over them.
//
// The first gradient of a step is copied down to the tensor's own memory, after the previous step has read
// that memory. Later ones, and a first one that is accumulated in another dtype, are copied to a transfer
// buffer, and the host queue adds them.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"
#include "offload/offloaded_tensor.h"
#include "optimizers/backend.h"

#include <span>
#include <vector>

namespace octavo::offload {

// A gradient of a norm: in host memory (`tensor`), or in device memory (`tensor` is null).
struct NormGrad {
  OffloadedTensor* tensor = nullptr;
  std::int64_t numel = 0;
};

// A norm of gradients of which some are in host memory. `backend` measures those in device memory, in their
// order; null: there is none.
struct NormCall {
  Device device;
  std::span<const NormGrad> grads;
  NormBackend* backend = nullptr;
  std::span<std::byte> workspace{};  // of `backend`
  GradNorm* out = nullptr;           // device memory
  void* stream = nullptr;
  int threads = 0;
};

class HostGrads {
 public:
  HostGrads(HostArena& arena, QueueErrors& errors) : arena_(arena), errors_(errors) {}

  // From now on gradients are summed for norms when they arrive.
  void sum_on_arrival() { sums_on_arrival_ = true; }
  // Allocates memory for the tensor's gradient. `all`: tensors that may need such memory soon share a block.
  Status reserve(OffloadedTensor& tensor, std::int64_t bytes, std::span<OffloadedTensor* const> all);
  // Copies a gradient from device memory and adds it to the host gradient, if there is one. REQUIRES: checked
  // arguments, and `queues.down()` is ordered after the gradient's writer. `for_step`: the next call steps
  // the tensor, and the norm is known already.
  Status add(OffloadedTensor& tensor, const void* grad, DType dtype, DeviceQueues& queues,
             std::span<OffloadedTensor* const> all, bool for_step = false);
  // Each chunk is summed where its gradient is. One tree over all chunks, in the order of the gradients, then
  // gives the same bits as gradients that are all in device memory. Blocks until all chunks are summed.
  Status norm(const NormCall& call, DeviceQueues& queues);

 private:
  struct TransferBuffer {
    HostBuffer buffer;
    Fence free;
  };
  Result<TransferBuffer*> find_transfer_buffer(std::int64_t bytes, bool pin);
  Result<GradSums*> complete_sums(OffloadedTensor& tensor, int threads);

  HostArena& arena_;
  QueueErrors& errors_;
  bool sums_on_arrival_ = false;
  std::vector<TransferBuffer> transfer_buffers_;
  HostBuffer norm_memory_;  // the norm is computed here and copied to the device
  Fence norm_sent_;
};

}  // namespace octavo::offload
