// The transducer loss with its joint network on a GPU: its memory, and the steps on the caller's stream.
// SPDX-License-Identifier: MIT
#include "cuda/runtime/runtime.h"
#include "status/first_error.h"
#include "transducer/cuda/tiles.h"
#include "transducer/invalid_argument.h"
#include "transducer/tiles.h"

namespace octavo::transducer {
namespace {

bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

// Fills in all fields but memory.
cuda::JointWork work_of(const TransducerArgs& args, const TransducerJoint& joint) {
  cuda::JointWork work{};
  work.lattice = cuda::lattice_of(args, key_of(args, joint));
  work.dtype = args.dtype;
  work.bias_dtype = joint.bias_dtype;
  work.aligned = joint.hidden * dtype_bytes(args.dtype) % 16 == 0 && is_aligned(joint.encoder) &&
                 is_aligned(joint.predictor);
  work.hidden = static_cast<std::int32_t>(joint.hidden);
  work.outputs = static_cast<std::int32_t>(args.tokens + duration_outputs(args));
  work.encoder = joint.encoder;
  work.predictor = joint.predictor;
  work.weight = joint.weight;
  work.bias = joint.bias;
  work.samples = joint.samples;
  work.dropout_base = formula::dropout_base(args.seed, args.step);
  work.layer = joint.layer;
  work.dropout = formula::make_dropout(joint.dropout);
  return work;
}

// Calls f(steps) for a call with its memory.
template <class Fn>
Status with_steps(const TransducerArgs& args, const TransducerJoint& joint, const cuda::JointWork& of,
                  Fn&& f) {
  OCTAVO_TRY(cuda::check_memory(args, {{"encoder", joint.encoder},
                                       {"predictor", joint.predictor},
                                       {"weight", joint.weight},
                                       {"bias", joint.bias},
                                       {"samples", joint.dropout > 0 ? joint.samples : nullptr},
                                       {"targets", args.targets},
                                       {"workspace", args.workspace.data()},
                                       {"scratch", joint.scratch.data()}}));
  OCTAVO_TRY(cuda::load_products());
  const cuda::DeviceScope scope(args.device.index);
  const cuda::JointTiles tiles(args, joint.tile_cells);
  cuda::JointWork work = of;
  cuda::Places kept(args.workspace.data()), scratch(joint.scratch.data());
  const JointSizes sizes(args, joint, tiles.most_rows, work.lattice.extra);
  void* const products = cuda::place_joint(work, tiles, sizes, kept, scratch);
  return f(cuda::JointSteps(work, tiles, products, static_cast<cudaStream_t>(args.stream)));
}

}  // namespace

Status joint_loss_cuda(const TransducerArgs& args, const TransducerJoint& joint, float* losses) {
  OCTAVO_TRY(cuda::check_memory(args, {{"losses", losses}}));
  return with_steps(args, joint, work_of(args, joint),
                    [&](const cuda::JointSteps& steps) { return steps.loss(losses); });
}

Status joint_gradient_cuda(const TransducerArgs& args, const TransducerJoint& joint, const float* grad_losses,
                           const TransducerJointGrads& grads) {
  OCTAVO_TRY(cuda::check_memory(args, {{"grad_losses", grad_losses},
                                       {"encoder gradient", grads.encoder},
                                       {"predictor gradient", grads.predictor},
                                       {"weight gradient", grads.weight},
                                       {"bias gradient", grads.bias}}));
  cuda::JointWork work = work_of(args, joint);
  work.grad_losses = grad_losses;
  work.grads = grads;
  return with_steps(args, joint, work, [](const cuda::JointSteps& steps) { return steps.gradient(); });
}

}  // namespace octavo::transducer
