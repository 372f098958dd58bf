// Tests the errors of the transducer loss with its joint network, its memory, and its C functions.
// SPDX-License-Identifier: MIT
#include "tests/support/c_structs.h"
#include "tests/transducer/joints.h"

#include <octavo/octavo.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace test {
namespace {

using octavo::Status;
using octavo::StatusCode;
using ::testing::HasSubstr;

JointBatch small() { return {{{4, 2}, {3, 1}}, {0, 1, 2}, 5, 6, 1}; }

template <class Change>
void expect_refused(const std::string& message, Change&& change) {
  JointBatch batch = small();
  batch.dropout = 0.1;
  TransducerJoint joint = batch.joint();
  TransducerArgs args = batch.args();
  change(batch, args, joint);
  const std::vector<double> workspace = batch.lattice.workspace, scratch = batch.scratch;
  float losses[2] = {7.0F, 7.0F};
  const Status status = octavo::transducer_joint_loss(args, joint, losses);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
  EXPECT_THAT(status.message(), HasSubstr("[transducer] " + message));
  EXPECT_EQ(losses[0], 7.0F);
  EXPECT_EQ(batch.lattice.workspace, workspace);
  EXPECT_EQ(batch.scratch, scratch);
}

TEST(TransducerJointApi, RefusesWhatIsWrong) {
  using A = TransducerArgs;
  using B = JointBatch;
  using J = TransducerJoint;
  expect_refused("batch: got 0, expected at least 1", [](B&, A& a, J&) { a.batch = 0; });
  expect_refused("hidden: got 0, expected 1 to 2^20", [](B&, A&, J& j) { j.hidden = 0; });
  expect_refused("bias_dtype: got 1", [](B&, A&, J& j) { j.bias_dtype = DType::bf16; });
  expect_refused("dropout: got 1, expected at least 0 and below 1", [](B&, A&, J& j) { j.dropout = 1.0; });
  expect_refused("dropout: got nan", [](B&, A&, J& j) { j.dropout = std::nan(""); });
  expect_refused("tile_cells: got -1", [](B&, A&, J& j) { j.tile_cells = -1; });
  expect_refused("encoder: got null", [](B&, A&, J& j) { j.encoder = nullptr; });
  expect_refused("predictor: got null", [](B&, A&, J& j) { j.predictor = nullptr; });
  expect_refused("weight: got null", [](B&, A&, J& j) { j.weight = nullptr; });
  expect_refused("samples: got null", [](B&, A&, J& j) { j.samples = nullptr; });
  expect_refused("scratch: got 8 bytes, expected", [](B&, A&, J& j) { j.scratch = j.scratch.first(8); });
  expect_refused("workspace: got 8 bytes", [](B&, A& a, J&) { a.workspace = a.workspace.first(8); });
  expect_refused("scratch: got memory of encoder", [](B& b, A&, J& j) { j.encoder = b.scratch.data(); });
  expect_refused("workspace: got memory of scratch", [](B& b, A& a, J& j) {
    b.scratch.resize(b.scratch.size() + b.lattice.workspace.size());
    j.scratch = a.workspace = std::as_writable_bytes(std::span(b.scratch));
  });
  expect_refused("logit_lengths[1]: got 5", [](B& b, A&, J&) { b.lattice.logit_lengths[1] = 5; });
  expect_refused("targets[0][1]: got 9", [](B& b, A&, J&) { b.lattice.targets[1] = 9; });
  expect_refused("durations: got none", [](B&, A& a, J&) { a.durations = {}; });
  JointBatch batch = small();
  TransducerJoint joint = batch.joint();
  EXPECT_THAT(octavo::transducer_joint_loss(batch.args(), joint, nullptr).message(),
              HasSubstr("losses: got null"));
}

TEST(TransducerJointApi, RefusesBadGradients) {
  JointBatch batch = small();
  const TransducerJoint joint = batch.joint();
  const TransducerArgs args = batch.args();
  const std::vector<float> ones(2, 1.0F);
  JointGradients out = batch.empty();
  const auto refused = [&](const std::string& message, const TransducerJoint& with, const float* upstream,
                           const TransducerJointGrads& grads) {
    const Status status = octavo::transducer_joint_gradient(args, with, upstream, grads);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
    EXPECT_THAT(status.message(), HasSubstr("[transducer] " + message));
    EXPECT_EQ(out, batch.empty());
  };
  float *const f = out.encoder.data(), *const w = out.weight.data();
  refused("workspace: was not filled by transducer_joint_loss", joint, ones.data(), {f});
  (void)batch.losses(args, joint);
  TransducerJoint other = joint;
  other.dropout = 0.5;
  refused("workspace: was not filled by transducer_joint_loss", other, ones.data(), {f});
  refused("grad_losses: got null", joint, nullptr, {f});
  refused("encoder gradient: got memory of weight gradient", joint, ones.data(), {w, nullptr, w});
  refused("encoder gradient: got memory of workspace", joint, ones.data(),
          {reinterpret_cast<float*>(batch.lattice.workspace.data())});
  refused("scratch: got memory of encoder gradient", joint, ones.data(),
          {reinterpret_cast<float*>(batch.scratch.data())});
  other = joint;
  other.bias = nullptr;
  refused("bias gradient: got a buffer, expected null", other, ones.data(),
          {nullptr, nullptr, nullptr, out.bias.data()});
}

TEST(TransducerJointApi, MemoryGrowsWithTilesAndNotWithTheBatch) {
  const auto bytes = [](std::int64_t clips, std::int64_t tile) {
    JointBatch batch(std::vector<ClipSize>(static_cast<std::size_t>(clips), {50, 9}), {0, 1, 2, 3, 4}, 40, 8,
                     1);
    TransducerJoint joint = batch.joint();
    joint.tile_cells = tile;
    return octavo::transducer_joint_bytes(batch.args(), joint).value();
  };
  EXPECT_EQ(bytes(1, 100).scratch, bytes(4, 100).scratch);
  EXPECT_LT(bytes(4, 100).scratch, bytes(4, 200).scratch);
  EXPECT_EQ(bytes(1, 0).workspace, 16 + 16 + 500 * (32 + 28));
  EXPECT_EQ(bytes(4, 0).workspace, 16 + 4 * (16 + 500 * (32 + 28)));
}

TEST(TransducerJointApi, TheCFunctionsDoTheSame) {
  JointBatch batch = small();
  batch.dropout = 0.2;
  const auto losses = batch.losses();
  const JointGradients gradient = batch.gradient();
  const TransducerJoint joint = batch.joint();
  const TransducerArgs args = batch.args();
  auto c = sized<octavo_transducer_args>();
  c.reduction = static_cast<uint32_t>(args.reduction);
  c.batch = args.batch;
  c.frames = args.frames;
  c.positions = args.positions;
  c.tokens = args.tokens;
  c.blank = args.blank;
  c.durations = args.durations.data();
  c.duration_count = static_cast<int64_t>(args.durations.size());
  c.targets = args.targets;
  c.logit_lengths = args.logit_lengths;
  c.target_lengths = args.target_lengths;
  c.seed = args.seed;
  c.step = args.step;
  c.workspace = args.workspace.data();
  c.workspace_bytes = static_cast<int64_t>(args.workspace.size());
  auto j = sized<octavo_transducer_joint>();
  j.hidden = joint.hidden;
  j.encoder = joint.encoder;
  j.predictor = joint.predictor;
  j.weight = joint.weight;
  j.bias = joint.bias;
  j.dropout = joint.dropout;
  j.samples = joint.samples;
  j.layer = joint.layer;
  j.scratch = joint.scratch.data();
  j.scratch_bytes = static_cast<int64_t>(joint.scratch.size());
  int64_t workspace = 0, scratch = 0;
  ASSERT_EQ(octavo_transducer_joint_bytes(&c, &j, &workspace, &scratch), 0U) << octavo_last_error();
  const auto bytes = octavo::transducer_joint_bytes(args, joint).value();
  EXPECT_EQ(workspace, bytes.workspace);
  EXPECT_EQ(scratch, bytes.scratch);
  std::vector<float> got(2);
  ASSERT_EQ(octavo_transducer_joint_loss(&c, &j, got.data()), 0U) << octavo_last_error();
  EXPECT_EQ(got, losses);
  const std::vector<float> ones(2, 1.0F);
  JointGradients out = batch.empty();
  auto grads = sized<octavo_transducer_joint_grads>();
  grads.grad_losses = ones.data();
  grads.encoder = out.encoder.data();
  grads.predictor = out.predictor.data();
  grads.weight = out.weight.data();
  grads.bias = out.bias.data();
  ASSERT_EQ(octavo_transducer_joint_gradient(&c, &j, &grads), 0U) << octavo_last_error();
  EXPECT_EQ(out, gradient);
  EXPECT_EQ(octavo_transducer_joint_loss(&c, nullptr, got.data()), 1U);
  EXPECT_EQ(octavo_transducer_joint_gradient(&c, &j, nullptr), 1U);
  EXPECT_EQ(octavo_transducer_joint_bytes(&c, &j, nullptr, &scratch), 1U);
}

}  // namespace
}  // namespace test
