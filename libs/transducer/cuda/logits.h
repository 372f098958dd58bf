// The host's interface to the kernels of the loss on logits.
// SPDX-License-Identifier: MIT
#pragma once

#include "transducer/cuda/loss.h"

#include <array>
#include <cstdint>

namespace octavo::cuda {

// Kernels get it by value. All strides of views are filled in.
struct LogitsWork {
  TransducerLattice lattice;
  DType dtype;
  TransducerView<const void> tokens, durations;
  TransducerView<void> token_grad, duration_grad;
  const float* grad_losses;
};

// Converts logits to records, for all cells that clips have.
cudaError_t logits_records(const LogitsWork& work, cudaStream_t stream);
// Computes the gradients of all cells of the padded sizes.
cudaError_t logits_gradients(const LogitsWork& work, cudaStream_t stream);

}  // namespace octavo::cuda
