// Tests the errors of the transducer loss (name, value and limit) and its C functions.
// SPDX-License-Identifier: MIT
#include "tests/support/c_structs.h"
#include "tests/transducer/lattices.h"

#include <octavo/backend.h>
#include <octavo/fp8.h>
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

LatticeBatch small() { return {{{4, 2}, {3, 1}}, {0, 1, 2}, 5, 1}; }

template <class Change>
void expect_refused(const std::string& message, Change&& change) {
  LatticeBatch batch = small();
  TransducerArgs args = batch.args();
  change(batch, args);
  const std::vector<double> before = batch.workspace;
  float losses[2] = {7.0F, 7.0F};
  const Status status = octavo::transducer_loss(args, losses);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
  EXPECT_THAT(status.message(), HasSubstr("[transducer] " + message));
  EXPECT_EQ(losses[0], 7.0F);
  EXPECT_EQ(batch.workspace, before);
}

TEST(TransducerApi, RefusesBadNumbers) {
  using A = TransducerArgs;
  using B = LatticeBatch;
  expect_refused("dtype: got 9", [](B&, A& a) { a.dtype = static_cast<DType>(9); });
  expect_refused("kind: got 2", [](B&, A& a) { a.kind = static_cast<TransducerKind>(2); });
  expect_refused("reduction: got 5", [](B&, A& a) { a.reduction = static_cast<TransducerReduction>(5); });
  expect_refused("batch: got -1", [](B&, A& a) { a.batch = -1; });
  expect_refused("frames: got 0, expected at least 1", [](B&, A& a) { a.frames = 0; });
  expect_refused("positions: got 0", [](B&, A& a) { a.positions = 0; });
  expect_refused("tokens: got 1125899906842624, expected batch * frames * positions * tokens up to 2^48",
                 [](B&, A& a) { a.tokens = std::int64_t{1} << 50; });
  expect_refused("blank: got 5, expected 0 to 4", [](B&, A& a) { a.blank = 5; });
  expect_refused("blank: got -1", [](B&, A& a) { a.blank = -1; });
  expect_refused("sigma: got nan", [](B&, A& a) { a.sigma = std::nan(""); });
  expect_refused("omega: got 1.5, expected a probability", [](B&, A& a) { a.omega = 1.5; });
  expect_refused("threads: got -1", [](B&, A& a) { a.threads = -1; });
  expect_refused("stream: got a stream", [](B& b, A& a) { a.stream = &b; });
  expect_refused("device.index: got 1 for the CPU", [](B&, A& a) { a.device.index = 1; });
}

TEST(TransducerApi, RefusesBadDurations) {
  const auto with = [](const std::string& message, std::vector<std::int64_t> durations) {
    expect_refused(message, [&](LatticeBatch&, TransducerArgs& a) { a.durations = durations; });
  };
  with("durations: got none, expected at least one (without durations: rnnt)", {});
  with("durations[1]: got -1", {0, -1});
  with("durations[2]: got 1 again, expected each duration once", {0, 1, 1});
  with("durations: got only 0", {0});
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 65; ++i) many.push_back(i);
  with("durations: got 65 of them, expected at most 64", many);
  expect_refused("durations: got 3 of them, expected none",
                 [](LatticeBatch&, TransducerArgs& a) { a.kind = TransducerKind::rnnt; });
  expect_refused("sigma: got 0.1, expected 0 (it belongs to tdt)", [](LatticeBatch&, TransducerArgs& a) {
    a.kind = TransducerKind::rnnt;
    a.durations = {};
    a.sigma = 0.1;
  });
}

TEST(TransducerApi, RefusesBadLengthsAndLabels) {
  using A = TransducerArgs;
  using B = LatticeBatch;
  expect_refused("logit_lengths[1]: got 5, expected 1 to 4, the frames of the logits",
                 [](B& b, A&) { b.logit_lengths[1] = 5; });
  expect_refused("logit_lengths[0]: got 0", [](B& b, A&) { b.logit_lengths[0] = 0; });
  expect_refused("target_lengths[1]: got 3, expected 0 to 2: the logits have 3 positions",
                 [](B& b, A&) { b.target_lengths[1] = 3; });
  expect_refused("target_lengths[0]: got -1", [](B& b, A&) { b.target_lengths[0] = -1; });
  expect_refused("targets[0][1]: got 5, expected 0 to 4, and not 4, the blank",
                 [](B& b, A&) { b.targets[1] = 5; });
  expect_refused("targets[0][0]: got -1", [](B& b, A&) { b.targets[0] = -1; });
  expect_refused("targets[1][0]: got 4, expected 0 to 4, and not 4, the blank",
                 [](B& b, A&) { b.targets[2] = 4; });
  expect_refused("target_stride: got -2", [](B&, A& a) { a.target_stride = -2; });
}

TEST(TransducerApi, RefusesBadMemory) {
  using A = TransducerArgs;
  using B = LatticeBatch;
  expect_refused("token_logits: got null", [](B&, A& a) { a.token_logits.data = nullptr; });
  expect_refused("duration_logits: got null", [](B&, A& a) { a.duration_logits.data = nullptr; });
  expect_refused("token_logits.strides[1]: got -3", [](B&, A& a) { a.token_logits.strides[1] = -3; });
  expect_refused("targets: got null", [](B&, A& a) { a.targets = nullptr; });
  expect_refused("logit_lengths: got null", [](B&, A& a) { a.logit_lengths = nullptr; });
  expect_refused("target_lengths: got null", [](B&, A& a) { a.target_lengths = nullptr; });
  expect_refused("workspace: got 16 bytes", [](B&, A& a) { a.workspace = a.workspace.first(16); });
  expect_refused("workspace: got memory of token_logits", [](B& b, A& a) {
    a.workspace = std::span(b.logits).first(b.logits.size());
    b.logit_lengths = {1, 1};
    b.target_lengths = {0, 0};
  });
  expect_refused("workspace: got memory of targets", [](B& b, A& a) {
    a.targets = reinterpret_cast<const std::int64_t*>(a.workspace.data());
    std::fill(b.workspace.begin(), b.workspace.end(), 0.0);
  });
  LatticeBatch batch = small();
  EXPECT_THAT(octavo::transducer_loss(batch.args(), nullptr).message(), HasSubstr("losses: got null"));
}

TEST(TransducerApi, ABuildWithoutCudaSaysSo) {
  if (octavo::gpu_info().runtime_version != 0) GTEST_SKIP() << "this build has a CUDA backend";
  LatticeBatch batch = small();
  auto cuda = batch.args();
  cuda.device = {octavo::DeviceKind::cuda, 0};
  float losses[2];
  const Status status = octavo::transducer_loss(cuda, losses);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_THAT(status.message(), HasSubstr("[transducer] device: got cuda:0"));
  octavo::TransducerJoint joint;
  joint.hidden = 4;
  // The memory for a GPU is computed without one, because plans need it.
  EXPECT_TRUE(octavo::transducer_joint_bytes(cuda, joint).ok());
}

// Compares with a list of the buffers, each at a multiple of 256 bytes.
TEST(TransducerApi, AGpusBytesAreThoseOfItsBuffers) {
  LatticeBatch batch = small();
  TransducerArgs args = batch.args();
  args.device = {octavo::DeviceKind::cuda, 0};
  octavo::TransducerJoint joint;
  joint.hidden = 5;
  std::int64_t cells = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) cells += args.logit_lengths[b] * (args.target_lengths[b] + 1);
  const auto at256 = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto durations = static_cast<std::int64_t>(args.durations.size());
  const std::int64_t each = args.dtype == octavo::DType::f32 ? 4 : 2, vector = 16 / each;
  const std::int64_t hidden = (5 + vector - 1) / vector * vector;
  const std::int64_t outputs = (args.tokens + durations + vector - 1) / vector * vector;
  const std::int64_t kept =
      at256(16) + at256(8 * args.batch) + at256(4 * cells * (3 + durations)) + 2 * at256(8 * cells);
  const std::int64_t rows = (cells + 127) / 128 * 128, shares = (5 + durations + 3) / 4 * 4;
  const std::int64_t scratch = at256(24 * args.batch) + at256(each * rows * outputs) +
                               2 * at256(each * rows * hidden) + at256(each * outputs * hidden) +
                               at256(each * outputs) + at256(4 * rows * shares) +
                               at256(4 * outputs * hidden) + at256(4 * 128 * outputs) +
                               at256(octavo::fp8::workspace_bytes({octavo::DeviceKind::cuda, 0}));
  const auto bytes = octavo::transducer_joint_bytes(args, joint).value();
  EXPECT_EQ(bytes.workspace, kept + 240);
  EXPECT_EQ(bytes.scratch, scratch + 240);
}

TEST(TransducerApi, RefusesBadGradients) {
  LatticeBatch batch = small();
  TransducerArgs args = batch.args();
  const std::vector<float> ones(2, 1.0F);
  std::vector<float> grad(batch.count());
  const auto strides = batch.strides();
  const auto refused = [&](const std::string& message, const float* upstream,
                           octavo::TransducerView<void> tokens, octavo::TransducerView<void> durations) {
    const Status status = octavo::transducer_gradient(args, upstream, tokens, durations);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
    EXPECT_THAT(status.message(), HasSubstr("[transducer] " + message));
  };
  float* const g = grad.data();
  auto* const own = reinterpret_cast<float*>(batch.logits.data());
  refused("workspace: was not filled by transducer_loss", ones.data(), {g, strides}, {g + 5, strides});
  (void)batch.losses();
  refused("grad_losses: got null", nullptr, {g, strides}, {g + 5, strides});
  refused("token_grad: got null", ones.data(), {nullptr, strides}, {g + 5, strides});
  refused("token_grad.strides[2]: got 4, expected at least 5", ones.data(), {g, {96, 24, 4}},
          {g + 5, strides});
  refused("duration_grad: got memory of token_grad", ones.data(), {g, strides}, {g + 4, strides});
  refused("duration_grad: got memory of token_grad", ones.data(), {g, strides}, {g + 8, strides});
  refused("token_grad: got memory of token_logits", ones.data(), {own + 1, strides}, {g + 5, strides});
  refused("token_grad: got memory of workspace", ones.data(), {batch.workspace.data(), strides},
          {g + 5, strides});
  args.reduction = TransducerReduction::sum;
  refused("token_grad: got memory of grad_losses", g, {g, strides}, {g + 5, strides});
  std::vector<std::int64_t> labels(batch.count(), 1);
  args.targets = labels.data();
  refused("token_grad: got memory of targets", ones.data(), {labels.data(), strides}, {g + 5, strides});
  args = batch.args();
  EXPECT_TRUE(octavo::transducer_gradient(args, ones.data(), {g, strides}, {g + 5, strides}).ok());
  batch.logit_lengths[0] = 3;  // the workspace of another call
  refused("workspace: was not filled by transducer_loss", ones.data(), {g, strides}, {g + 5, strides});
}

TEST(TransducerApi, NoClipsNeedNoMemory) {
  TransducerArgs args;
  args.frames = args.positions = args.tokens = 1;
  const std::vector<std::int64_t> one = {1};
  args.durations = one;
  args.reduction = TransducerReduction::none;
  EXPECT_TRUE(octavo::transducer_loss(args, nullptr).ok());
  EXPECT_TRUE(octavo::transducer_gradient(args, nullptr, {}, {}).ok());
  args.reduction = TransducerReduction::mean_batch;
  float loss = 0.0F;
  EXPECT_THAT(octavo::transducer_loss(args, &loss).message(), HasSubstr("batch: got 0, expected at least 1"));
}

TEST(TransducerApi, ReductionsHaveNames) {
  EXPECT_EQ(*octavo::parse_transducer_reduction("mean_volume"), TransducerReduction::mean_volume);
  EXPECT_THAT(octavo::parse_transducer_reduction("median").status().message(),
              HasSubstr("reduction: got 'median', expected one of mean_batch, mean, mean_volume, sum, none"));
  std::uint32_t number = 9;
  EXPECT_EQ(octavo_parse("reduction", "none", &number), 0U);
  EXPECT_EQ(number, 4U);
}

TEST(TransducerApi, WorkspacesHoldRealCellsOnly) {
  LatticeBatch one({{4, 2}}, {0, 1}, 5, 1), padded({{4, 2}, {1000, 500}}, {0, 1}, 5, 1);
  padded.logit_lengths[1] = 1;
  padded.target_lengths[1] = 0;
  const std::int64_t alone = octavo::transducer_workspace_bytes(one.args()).value();
  EXPECT_EQ(alone, 16 + 16 + 32 * 12);
  EXPECT_EQ(octavo::transducer_workspace_bytes(padded.args()).value(), alone + 16 + 32);
}

octavo_transducer_args c_args(LatticeBatch& batch) {
  auto c = sized<octavo_transducer_args>();
  const TransducerArgs args = batch.args();
  c.reduction = static_cast<uint32_t>(args.reduction);
  c.batch = args.batch;
  c.frames = args.frames;
  c.positions = args.positions;
  c.tokens = args.tokens;
  c.blank = args.blank;
  c.token_logits = args.token_logits.data;
  c.duration_logits = args.duration_logits.data;
  std::copy(args.token_logits.strides.begin(), args.token_logits.strides.end(), c.token_strides);
  std::copy(args.duration_logits.strides.begin(), args.duration_logits.strides.end(), c.duration_strides);
  c.durations = args.durations.data();
  c.duration_count = static_cast<int64_t>(args.durations.size());
  c.targets = args.targets;
  c.logit_lengths = args.logit_lengths;
  c.target_lengths = args.target_lengths;
  c.sigma = 0.5;
  c.workspace = args.workspace.data();
  c.workspace_bytes = static_cast<int64_t>(args.workspace.size());
  return c;
}

TEST(TransducerApi, TheCFunctionsDoTheSame) {
  LatticeBatch batch = small();
  batch.sigma = 0.5;
  const auto losses = batch.losses();
  const auto gradient = batch.gradient();
  octavo_transducer_args args = c_args(batch);
  EXPECT_EQ(octavo_transducer_workspace_bytes(&args),
            octavo::transducer_workspace_bytes(batch.args()).value());
  std::vector<float> got(2);
  ASSERT_EQ(octavo_transducer_loss(&args, got.data()), 0U) << octavo_last_error();
  EXPECT_EQ(got, losses);
  const std::vector<float> ones(2, 1.0F);
  std::vector<std::byte> grad(batch.logits.size());
  auto grads = sized<octavo_transducer_grads>();
  grads.grad_losses = ones.data();
  grads.token_grad = grad.data();
  grads.duration_grad = grad.data() + 5 * sizeof(float);
  std::copy(std::begin(args.token_strides), std::end(args.token_strides), grads.token_strides);
  std::copy(std::begin(args.token_strides), std::end(args.token_strides), grads.duration_strides);
  ASSERT_EQ(octavo_transducer_gradient(&args, &grads), 0U) << octavo_last_error();
  EXPECT_EQ(grad, gradient);
  args.blank = 7;
  EXPECT_EQ(octavo_transducer_loss(&args, got.data()), 1U);
  EXPECT_THAT(octavo_last_error(), HasSubstr("[transducer] blank: got 7"));
  args.frames = 0;
  EXPECT_EQ(octavo_transducer_workspace_bytes(&args), -1);
  EXPECT_EQ(octavo_transducer_loss(nullptr, got.data()), 1U);
  EXPECT_EQ(octavo_transducer_gradient(&args, nullptr), 1U);
}

}  // namespace
}  // namespace test
