// The public transducer loss with its joint network: checks, memory, and the call of the device's part.
// SPDX-License-Identifier: MIT
#include "optimizers/resolve.h"
#include "transducer/refuse.h"

#include <string>

namespace octavo {
namespace {

constexpr const char* kWhere = "[transducer]";

Status check_call(const TransducerArgs& args, const TransducerJoint& joint) {
  if (Status bad = transducer::check_joint(args, joint); !bad.ok()) return bad;
  const Result<TransducerJointBytes> bytes = transducer_joint_bytes(args, joint);
  if (!bytes.ok()) return bytes.status();
  const char* const source = "transducer_joint_bytes()";
  if (Status bad = check_workspace(kWhere, args.workspace, bytes->workspace, source); !bad.ok()) return bad;
  if (static_cast<std::int64_t>(joint.scratch.size()) < bytes->scratch) {
    return transducer::refuse("scratch", std::to_string(joint.scratch.size()) + " bytes",
                              std::to_string(bytes->scratch) + " (" + source + ")");
  }
  return check_buffer(std::string(kWhere) + " scratch", joint.scratch.data(), bytes->scratch, 16);
}

Status no_cpu() { return Status::unsupported("[transducer] the joint network has no CPU backend yet"); }

}  // namespace

Result<TransducerJointBytes> transducer_joint_bytes(const TransducerArgs& args,
                                                    const TransducerJoint& joint) {
  if (Status bad = transducer::check_joint_sizes(args, joint); !bad.ok()) return bad;
  if (args.device.kind == DeviceKind::cuda) return transducer::joint_bytes_cuda(args, joint);
  return no_cpu();
}

Status transducer_joint_loss(const TransducerArgs& args, const TransducerJoint& joint, float* losses) {
  if (Status bad = check_call(args, joint); !bad.ok()) return bad;
  if (Status bad = transducer::check_joint_losses(args, joint, losses); !bad.ok()) return bad;
  if (args.device.kind == DeviceKind::cuda) return transducer::joint_loss_cuda(args, joint, losses);
  return no_cpu();
}

Status transducer_joint_gradient(const TransducerArgs& args, const TransducerJoint& joint,
                                 const float* grad_losses, const TransducerJointGrads& grads) {
  if (Status bad = check_call(args, joint); !bad.ok()) return bad;
  if (Status bad = transducer::check_joint_grads(args, joint, grad_losses, grads); !bad.ok()) return bad;
  if (args.device.kind == DeviceKind::cuda)
    return transducer::joint_gradient_cuda(args, joint, grad_losses, grads);
  return no_cpu();
}

}  // namespace octavo
