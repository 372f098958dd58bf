// The transducer loss on a GPU: not built yet.
// SPDX-License-Identifier: MIT
#include "transducer/backend.h"

#include <string>

namespace octavo::transducer {
namespace {

Status not_yet(const TransducerArgs& args) {
  return Status::unsupported("[transducer] device: got cuda:" + std::to_string(args.device.index) +
                             ", but this loss has no CUDA backend yet; move its tensors to the CPU");
}

}  // namespace

Result<std::int64_t> workspace_bytes_cuda(const TransducerArgs& args) { return not_yet(args); }
Status loss_cuda(const TransducerArgs& args, float* /*losses*/) { return not_yet(args); }
Status gradient_cuda(const TransducerArgs& args, const float* /*grad_losses*/,
                     TransducerView<void> /*token_grad*/, TransducerView<void> /*duration_grad*/) {
  return not_yet(args);
}
Result<TransducerJointBytes> joint_bytes_cuda(const TransducerArgs& args, const TransducerJoint& /*joint*/) {
  return not_yet(args);
}
Status joint_loss_cuda(const TransducerArgs& args, const TransducerJoint& /*joint*/, float* /*losses*/) {
  return not_yet(args);
}
Status joint_gradient_cuda(const TransducerArgs& args, const TransducerJoint& /*joint*/,
                           const float* /*grad_losses*/, const TransducerJointGrads& /*grads*/) {
  return not_yet(args);
}

}  // namespace octavo::transducer
