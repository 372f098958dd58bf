// What the CPU does for the transducer loss, and the checks before it; the public functions only forward.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/transducer.h>

namespace octavo::transducer {

// Everything of the arguments but workspace, losses and gradients: sizes, views, durations, lengths, labels.
Status check_args(const TransducerArgs& args);
Status check_lengths(const TransducerArgs& args);
// From a clip's first label to the next one's.
inline std::int64_t target_stride(const TransducerArgs& args) {
  return args.target_stride != 0 ? args.target_stride : args.positions - 1;
}
// A filled-in view: three zeros become the strides of dense memory.
std::array<std::int64_t, 3> strides_of(const TransducerArgs& args, std::array<std::int64_t, 3> strides,
                                       std::int64_t outputs);
Status check_losses(const TransducerArgs& args, const float* losses);
// REQUIRES: checked arguments.
Status check_grads(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                   TransducerView<void> duration_grad);

// REQUIRES: what the checks accept, with at least one clip, and a workspace of the right size.
void loss_cpu(const TransducerArgs& args, float* losses);
void gradient_cpu(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                  TransducerView<void> duration_grad);

}  // namespace octavo::transducer
