// The checks of the transducer loss with its joint network, besides those that both losses share.
// SPDX-License-Identifier: MIT
#include "formula/describe.h"
#include "optimizers/checks.h"
#include "status/first_error.h"
#include "transducer/invalid_argument.h"

#include <algorithm>
#include <string>
#include <vector>

namespace octavo::transducer {
namespace {

struct JointBytes {
  std::int64_t encoder, predictor, weight, bias;
};

// Returns the sizes of the network's tensors, with `each` bytes for an element and `bias` bytes for an
// element of the bias.
JointBytes sizes_of(const TransducerArgs& args, const TransducerJoint& joint, std::int64_t each,
                    std::int64_t bias) {
  const std::int64_t outputs = args.tokens + duration_outputs(args);
  return {each * args.batch * args.frames * joint.hidden, each * args.batch * args.positions * joint.hidden,
          each * outputs * joint.hidden, bias * outputs};
}

// Returns all buffers that both calls read.
std::vector<Buffer> inputs(const TransducerArgs& args, const TransducerJoint& joint) {
  const JointBytes bytes = sizes_of(args, joint, dtype_bytes(args.dtype), dtype_bytes(joint.bias_dtype));
  std::vector<Buffer> all = {{"encoder", bytes_of(joint.encoder, bytes.encoder)},
                             {"predictor", bytes_of(joint.predictor, bytes.predictor)},
                             {"weight", bytes_of(joint.weight, bytes.weight)},
                             {"bias", bytes_of(joint.bias, joint.bias != nullptr ? bytes.bias : 0)},
                             {"samples", bytes_of(joint.samples, joint.dropout > 0 ? 8 * args.batch : 0)}};
  for (const Buffer& buffer : indices(args)) all.push_back(buffer);
  return all;
}

// Checks every buffer of `written` against all inputs and all buffers after it.
Status check_all_apart(std::span<const Buffer> written, std::span<const Buffer> read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    OCTAVO_TRY(check_apart(written[i], read));
    OCTAVO_TRY(check_apart(written[i], written.subspan(i + 1)));
  }
  return {};
}

Status check_given(const char* name, const void* data, std::int64_t bytes, std::int64_t alignment) {
  return check_buffer(std::string(kWhere) + name, data, bytes, alignment);
}

}  // namespace

Status check_joint_numbers(const TransducerArgs& args, const TransducerJoint& joint) {
  constexpr std::int64_t kUnits = std::int64_t{1} << 20, kMost = std::int64_t{1} << 48;
  if (args.batch < 1) return invalid("batch", args.batch, "at least 1");
  if (joint.hidden < 1 || joint.hidden > kUnits) return invalid("hidden", joint.hidden, "1 to 2^20");
  const std::int64_t cells = args.batch * args.frames * args.positions;
  if (joint.hidden > kMost / std::max(cells, args.tokens + duration_outputs(args)))
    return invalid("hidden", joint.hidden, "cells * hidden and outputs * hidden up to 2^48");
  if (joint.bias_dtype != DType::f32 && joint.bias_dtype != args.dtype)
    return invalid("bias_dtype", static_cast<std::int64_t>(joint.bias_dtype), "0 (f32) or dtype");
  if (!(joint.dropout >= 0.0 && joint.dropout < 1.0))
    return invalid("dropout", formula::shown(joint.dropout), "at least 0 and below 1");
  if (joint.tile_cells < 0) return invalid("tile_cells", joint.tile_cells, "at least 0 (0: default)");
  return {};
}

Status check_joint_memory(const TransducerArgs& args, const TransducerJoint& joint) {
  const std::int64_t each = dtype_bytes(args.dtype), bias = dtype_bytes(joint.bias_dtype);
  const JointBytes bytes = sizes_of(args, joint, each, bias);
  OCTAVO_TRY(first_error({check_given("encoder", joint.encoder, bytes.encoder, each),
                          check_given("predictor", joint.predictor, bytes.predictor, each),
                          check_given("weight", joint.weight, bytes.weight, each)}));
  if (joint.bias != nullptr) OCTAVO_TRY(check_given("bias", joint.bias, bytes.bias, bias));
  return joint.dropout > 0 ? check_given("samples", joint.samples, 8 * args.batch, 8) : Status();
}

Status check_joint_losses(const TransducerArgs& args, const TransducerJoint& joint, const float* losses) {
  const std::int64_t bytes = loss_bytes(args);
  OCTAVO_TRY(check_given("losses", losses, bytes, 4));
  const Buffer written[] = {
      {"workspace", args.workspace}, {"scratch", joint.scratch}, {"losses", bytes_of(losses, bytes)}};
  return check_all_apart(written, inputs(args, joint));
}

Status check_joint_grads(const TransducerArgs& args, const TransducerJoint& joint, const float* grad_losses,
                         const TransducerJointGrads& grads) {
  OCTAVO_TRY(check_given("grad_losses", grad_losses, loss_bytes(args), 4));
  const JointBytes bytes = sizes_of(args, joint, 4, 4);
  std::vector<Buffer> written = {{"scratch", joint.scratch}};
  const auto add = [&](const char* name, const float* data, std::int64_t size) {
    if (data == nullptr) return Status();
    written.push_back({name, bytes_of(data, size)});
    return check_given(name, data, size, 4);
  };
  OCTAVO_TRY(first_error({add("encoder gradient", grads.encoder, bytes.encoder),
                          add("predictor gradient", grads.predictor, bytes.predictor),
                          add("weight gradient", grads.weight, bytes.weight),
                          add("bias gradient", grads.bias, bytes.bias)}));
  if (grads.bias != nullptr && joint.bias == nullptr)
    return invalid("bias gradient", "a buffer", "null: there is no bias");
  std::vector<Buffer> read = inputs(args, joint);
  read.push_back({"workspace", args.workspace});
  read.push_back({"grad_losses", bytes_of(grad_losses, loss_bytes(args))});
  return check_all_apart(written, read);
}

}  // namespace octavo::transducer
