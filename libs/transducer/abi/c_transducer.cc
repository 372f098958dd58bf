// The C ABI of the transducer loss: reads structs, and calls octavo/transducer.h.
// SPDX-License-Identifier: MIT
#include "abi/c_common.h"

#include <octavo/octavo.h>
#include <octavo/transducer.h>

#include <algorithm>
#include <cstddef>

namespace {

using namespace octavo::c;  // NOLINT(google-build-using-namespace)
using octavo::Status;

template <class Void>
octavo::TransducerView<Void> view(Void* data, const int64_t (&strides)[3]) {
  octavo::TransducerView<Void> out{data, {}};
  std::copy(std::begin(strides), std::end(strides), out.strides.begin());
  return out;
}

octavo::TransducerArgs convert(const octavo_transducer_args* from) {
  const octavo_transducer_args& c = read_struct("args", from);
  check_array("durations", c.durations, c.duration_count);
  octavo::TransducerArgs args;
  args.device = device(c.device_kind, c.device_index);
  args.dtype = static_cast<octavo::DType>(c.dtype);
  args.kind = static_cast<octavo::TransducerKind>(c.kind);
  args.reduction = static_cast<octavo::TransducerReduction>(c.reduction);
  args.batch = c.batch;
  args.frames = c.frames;
  args.positions = c.positions;
  args.tokens = c.tokens;
  args.blank = c.blank;
  args.token_logits = view(c.token_logits, c.token_strides);
  args.duration_logits = view(c.duration_logits, c.duration_strides);
  args.durations = {c.durations, static_cast<std::size_t>(c.duration_count)};
  args.targets = c.targets;
  args.target_stride = c.target_stride;
  args.logit_lengths = c.logit_lengths;
  args.target_lengths = c.target_lengths;
  args.sigma = c.sigma;
  args.omega = c.omega;
  args.seed = c.seed;
  args.step = c.step;
  args.workspace = workspace_span(c.workspace, c.workspace_bytes);
  args.stream = c.stream;
  args.threads = c.threads;
  return args;
}

octavo::TransducerJoint convert(const octavo_transducer_joint* from) {
  const octavo_transducer_joint& c = read_struct("joint", from);
  octavo::TransducerJoint joint;
  joint.hidden = c.hidden;
  joint.encoder = c.encoder;
  joint.predictor = c.predictor;
  joint.weight = c.weight;
  joint.bias = c.bias;
  joint.bias_dtype = static_cast<octavo::DType>(c.bias_dtype);
  joint.dropout = c.dropout;
  joint.samples = c.samples;
  joint.layer = c.layer;
  joint.tile_cells = c.tile_cells;
  joint.scratch = workspace_span(c.scratch, c.scratch_bytes);
  return joint;
}

}  // namespace

extern "C" {

int64_t octavo_transducer_workspace_bytes(const octavo_transducer_args* args) {
  return value_or<int64_t>(-1, [&] { return octavo::transducer_workspace_bytes(convert(args)).value(); });
}

octavo_status octavo_transducer_loss(const octavo_transducer_args* args, float* losses) {
  return guarded([&] { return octavo::transducer_loss(convert(args), losses); });
}

octavo_status octavo_transducer_gradient(const octavo_transducer_args* args,
                                         const octavo_transducer_grads* grads) {
  return guarded([&] {
    const octavo::TransducerArgs converted = convert(args);
    const octavo_transducer_grads& g = read_struct("grads", grads);
    return octavo::transducer_gradient(converted, g.grad_losses, view(g.token_grad, g.token_strides),
                                       view(g.duration_grad, g.duration_strides));
  });
}

octavo_status octavo_transducer_joint_bytes(const octavo_transducer_args* args,
                                            const octavo_transducer_joint* joint, int64_t* workspace_bytes,
                                            int64_t* scratch_bytes) {
  return guarded([&]() -> Status {
    check_given("workspace_bytes", workspace_bytes);
    check_given("scratch_bytes", scratch_bytes);
    const auto bytes = octavo::transducer_joint_bytes(convert(args), convert(joint)).value();
    *workspace_bytes = bytes.workspace;
    *scratch_bytes = bytes.scratch;
    return {};
  });
}

octavo_status octavo_transducer_joint_loss(const octavo_transducer_args* args,
                                           const octavo_transducer_joint* joint, float* losses) {
  return guarded([&] { return octavo::transducer_joint_loss(convert(args), convert(joint), losses); });
}

octavo_status octavo_transducer_joint_gradient(const octavo_transducer_args* args,
                                               const octavo_transducer_joint* joint,
                                               const octavo_transducer_joint_grads* grads) {
  return guarded([&] {
    const octavo_transducer_joint_grads& g = read_struct("grads", grads);
    return octavo::transducer_joint_gradient(convert(args), convert(joint), g.grad_losses,
                                             {g.encoder, g.predictor, g.weight, g.bias});
  });
}

}  // extern "C"
