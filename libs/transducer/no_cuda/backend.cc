// The CUDA backend of the transducer loss in a build without CUDA: returns an error that explains how to get
// it.
// SPDX-License-Identifier: MIT
#include "transducer/backend.h"

#include <string>

namespace octavo::transducer {
namespace {

Status no_cuda(const TransducerArgs& args) {
  return Status::unsupported("[transducer] device: got cuda:", args.device.index,
                             ", but this build has no CUDA backend; configure with -DOCTAVO_CUDA=ON");
}

}  // namespace

Result<std::int64_t> workspace_bytes_cuda(const TransducerArgs& args) { return no_cuda(args); }
Status loss_cuda(const TransducerArgs& args, float* /*losses*/) { return no_cuda(args); }
Status gradient_cuda(const TransducerArgs& args, const float* /*grad_losses*/,
                     TransducerView<void> /*token_grad*/, TransducerView<void> /*duration_grad*/) {
  return no_cuda(args);
}
Status joint_loss_cuda(const TransducerArgs& args, const TransducerJoint& /*joint*/, float* /*losses*/) {
  return no_cuda(args);
}
Status joint_gradient_cuda(const TransducerArgs& args, const TransducerJoint& /*joint*/,
                           const float* /*grad_losses*/, const TransducerJointGrads& /*grads*/) {
  return no_cuda(args);
}

}  // namespace octavo::transducer
