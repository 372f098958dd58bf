// The public transducer loss with its joint network: checks, memory, and the call of the device's backend.
// SPDX-License-Identifier: MIT
#include "formula/stochastic_round.h"
#include "optimizers/checks.h"
#include "status/first_error.h"
#include "transducer/gpu_sizes.h"
#include "transducer/invalid_argument.h"
#include "transducer/lattice.h"

#include <algorithm>
#include <bit>
#include <string>

namespace octavo {

std::uint64_t transducer::key_of(const TransducerArgs& args, const TransducerJoint& joint) {
  std::uint64_t key = key_of(args, true);
  const std::uint64_t dropout[] = {std::bit_cast<std::uint64_t>(joint.dropout), joint.layer, args.seed,
                                   args.step};
  const auto add = [&](std::uint64_t value) { key = formula::mix64((key ^ value) + formula::kGolden); };
  add(static_cast<std::uint64_t>(joint.hidden));
  add(joint.bias != nullptr ? 1 : 0);
  if (joint.dropout > 0) std::for_each(std::begin(dropout), std::end(dropout), add);
  return key;
}

namespace {

using transducer::Workspace;

constexpr const char* kWhere = "[transducer]";

Status check_call(const TransducerArgs& args, const TransducerJoint& joint) {
  OCTAVO_TRY(transducer::check_joint(args, joint));
  const Result<TransducerJointBytes> bytes = transducer_joint_bytes(args, joint);
  if (!bytes.ok()) return bytes.status();
  const char* const source = "transducer_joint_bytes()";
  OCTAVO_TRY(check_workspace(kWhere, args.workspace, bytes->workspace, source));
  if (static_cast<std::int64_t>(joint.scratch.size()) < bytes->scratch) {
    return transducer::invalid("scratch", std::to_string(joint.scratch.size()) + " bytes",
                               std::to_string(bytes->scratch) + " (" + source + ")");
  }
  return check_buffer(std::string(kWhere) + " scratch", joint.scratch.data(), bytes->scratch, 16);
}

}  // namespace

Result<TransducerJointBytes> transducer_joint_bytes(const TransducerArgs& args,
                                                    const TransducerJoint& joint) {
  OCTAVO_TRY(transducer::check_joint_sizes(args, joint));
  if (args.device.kind == DeviceKind::cuda) return transducer::joint_bytes_gpu(args, joint);
  return transducer::joint_bytes_cpu(args, joint);
}

Status transducer_joint_loss(const TransducerArgs& args, const TransducerJoint& joint, float* losses) {
  OCTAVO_TRY(check_call(args, joint));
  OCTAVO_TRY(transducer::check_joint_losses(args, joint, losses));
  if (args.device.kind == DeviceKind::cuda) return transducer::joint_loss_cuda(args, joint, losses);
  OCTAVO_TRY(transducer::joint_loss_cpu(args, joint, losses));
  *Workspace(args.workspace, args.batch).head = {transducer::key_of(args, joint), 0};
  return {};
}

Status transducer_joint_gradient(const TransducerArgs& args, const TransducerJoint& joint,
                                 const float* grad_losses, const TransducerJointGrads& grads) {
  OCTAVO_TRY(check_call(args, joint));
  OCTAVO_TRY(transducer::check_joint_grads(args, joint, grad_losses, grads));
  if (args.device.kind == DeviceKind::cuda)
    return transducer::joint_gradient_cuda(args, joint, grad_losses, grads);
  if (Workspace(args.workspace, args.batch).head->key != transducer::key_of(args, joint)) {
    return Status::invalid(
        kWhere, " workspace: was not filled by transducer_joint_loss with these arguments; call it first");
  }
  return transducer::joint_gradient_cpu(args, joint, grad_losses, grads);
}

}  // namespace octavo
