// The loss on logits on a GPU: its kernels as the host sees them.
// SPDX-License-Identifier: MIT
#pragma once

#include "transducer/cuda/loss.h"

#include <array>
#include <cstdint>

namespace octavo::cuda {

// Kernels get it by value. Strides of views are all given.
struct LogitsWork {
  TransducerLattice lattice;
  DType dtype;
  TransducerView<const void> tokens, durations;
  TransducerView<void> token_grad, duration_grad;
  const float* grad_losses;
};

// Logits to records, for all cells that clips have.
cudaError_t logits_records(const LogitsWork& work, cudaStream_t stream);
// The gradients, of all cells of the padded sizes.
cudaError_t logits_gradients(const LogitsWork& work, cudaStream_t stream);

}  // namespace octavo::cuda
