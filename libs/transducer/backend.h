// The interface of a device's transducer loss, and the checks before it; the public functions only forward.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/transducer.h>

namespace octavo::transducer {

// Checks all arguments but workspace, losses and gradients: sizes, views, durations, lengths, labels. Memory
// of a GPU is not read.
Status check_args(const TransducerArgs& args);
// Checks sizes, and lengths in host memory.
Status check_lengths(const TransducerArgs& args);
// Checks only sizes, for lengths that are on a GPU.
Status check_sizes(const TransducerArgs& args);
// check_joint corresponds to check_args for a joint network. check_joint_sizes checks all of it but the
// tensors' memory.
Status check_joint(const TransducerArgs& args, const TransducerJoint& joint);
Status check_joint_sizes(const TransducerArgs& args, const TransducerJoint& joint);
// Returns the distance from a clip's first label to the next clip's.
inline std::int64_t target_stride(const TransducerArgs& args) {
  return args.target_stride != 0 ? args.target_stride : args.positions - 1;
}
// Returns a view's strides: three zeros become the strides of dense memory.
std::array<std::int64_t, 3> strides_of(const TransducerArgs& args, std::array<std::int64_t, 3> strides,
                                       std::int64_t outputs);
Status check_losses(const TransducerArgs& args, const float* losses);
// REQUIRES: checked arguments.
Status check_grads(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                   TransducerView<void> duration_grad);

Status check_joint_losses(const TransducerArgs& args, const TransducerJoint& joint, const float* losses);
Status check_joint_grads(const TransducerArgs& args, const TransducerJoint& joint, const float* grad_losses,
                         const TransducerJointGrads& grads);

// Returns a number for the arguments, from which the gradient detects a workspace of another call. `lengths`
// includes the lengths of the clips, which are in host memory.
std::uint64_t key_of(const TransducerArgs& args, bool lengths);
std::uint64_t key_of(const TransducerArgs& args, const TransducerJoint& joint);

// The backends. REQUIRES: arguments that the checks accept, with at least one clip, and workspace and scratch
// of the right size. The CUDA backend checks that pointers are on the device.
void loss_cpu(const TransducerArgs& args, float* losses);
void gradient_cpu(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                  TransducerView<void> duration_grad);
TransducerJointBytes joint_bytes_cpu(const TransducerArgs& args, const TransducerJoint& joint);
Status joint_loss_cpu(const TransducerArgs& args, const TransducerJoint& joint, float* losses);
Status joint_gradient_cpu(const TransducerArgs& args, const TransducerJoint& joint, const float* grad_losses,
                          const TransducerJointGrads& grads);

Result<std::int64_t> workspace_bytes_cuda(const TransducerArgs& args);
Status loss_cuda(const TransducerArgs& args, float* losses);  // without clips, it writes the sum, zero
Status gradient_cuda(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                     TransducerView<void> duration_grad);
Status joint_loss_cuda(const TransducerArgs& args, const TransducerJoint& joint, float* losses);
Status joint_gradient_cuda(const TransducerArgs& args, const TransducerJoint& joint, const float* grad_losses,
                           const TransducerJointGrads& grads);

}  // namespace octavo::transducer
