// Compares the transducer loss with its joint network on the GPU with the CPU: all types, tiles, durations,
// alignments and reductions; the same bits twice, and in a graph.
//
// In bf16 and fp16 all inputs are small multiples of a power of two, so that products are exact in fp32 and
// both devices have the same logits.
// SPDX-License-Identifier: MIT
#include "tests/cuda/graph.h"
#include "tests/cuda/transducers.h"
#include "tests/transducer/joints.h"

#include <gmock/gmock.h>

#include <optional>

namespace test {
namespace {

using octavo::Status;
using ::testing::HasSubstr;

class TransducerJointCuda : public GpuTest {};
class SmallTransducerJointCuda : public GpuTest {};

const std::vector<ClipSize> kClips = {{9, 4}, {1, 0}, {12, 6}, {5, 0}, {1, 5}, {12, 1}};

struct Case {
  DType dtype = DType::f32;
  std::vector<ClipSize> clips = kClips;
  std::vector<std::int64_t> durations = {0, 1, 2, 3, 4};
  std::int64_t vocabulary = 7, hidden = 20, tile = 0;
  double dropout = 0.0;
  TransducerReduction reduction = TransducerReduction::none;
  int bias = 1;  // 0: none, 1: of the type, 2: fp32
  std::int64_t phase = 0;
  double omega = 0.0;
  double slack = 1.0;

  [[nodiscard]] std::string text() const {
    return std::string(octavo::name(dtype)) + " durations " + std::to_string(durations.size()) + " tokens " +
           std::to_string(vocabulary) + " hidden " + std::to_string(hidden) + " tile " +
           std::to_string(tile) + " dropout " + std::to_string(dropout) + " reduction " +
           std::to_string(static_cast<int>(reduction)) + " bias " + std::to_string(bias) + " phase " +
           std::to_string(phase);
  }
  // Logits are equal; in bf16 and fp16 a gradient of a logit and of a hidden unit may be rounded to a
  // neighbour.
  [[nodiscard]] Tolerance gradients() const {
    return {0.0, slack * (dtype == DType::f32 ? 1e-5 : dtype == DType::bf16 ? 0x1p-7 : 0x1p-10)};
  }
};

JointBatch batch_of(const Case& c) {
  JointBatch batch(c.clips, c.durations, c.vocabulary, c.hidden, 31, c.dtype);
  if (c.dtype != DType::f32) {
    const auto simplify = [](std::vector<float>& values, float step, float most) {
      for (float& x : values) x = std::isnan(x) ? x : std::clamp(std::round(x / step) * step, -most, most);
    };
    simplify(batch.encoder, 0x1p-3F, 2.0F);
    simplify(batch.predictor, 0x1p-3F, 2.0F);
    simplify(batch.weight, 0x1p-4F, 1.0F);
    simplify(batch.bias, 0x1p-4F, 1.0F);
  }
  batch.dropout = c.dropout;
  batch.lattice.sigma = c.durations.empty() ? 0.0 : 0.05;
  batch.lattice.reduction = c.reduction;
  batch.tile_cells = c.tile;
  return batch;
}

// The arguments of a call on the CPU.
struct Call {
  TransducerArgs args;
  TransducerJoint joint;
};
Call call_of(const Case& c, JointBatch& batch) {
  Call out;
  out.joint = batch.joint();
  out.args = batch.args();
  out.args.omega = c.omega;
  if (c.bias == 0) out.joint.bias = nullptr;
  if (c.bias == 2) out.joint.bias = batch.bias.data(), out.joint.bias_dtype = DType::f32;
  return out;
}

// A copy of a batch on the device.
class DeviceJoint {
 public:
  DeviceJoint(JointBatch& batch, const Call& call, std::int64_t phase, Memory memory, cudaStream_t stream)
      : memory_(memory), call_(call), stream_(stream) {
    const std::size_t each = batch.lattice.bytes_each();
    const std::int64_t shift = phase * static_cast<std::int64_t>(each);
    const std::size_t bias = call.joint.bias == nullptr
                                 ? 0
                                 : batch.bias.size() * usize(octavo::dtype_bytes(call.joint.bias_dtype));
    const std::size_t inputs[] = {
        add(memory_, call.joint.encoder, batch.encoder.size() * each, shift),
        add(memory_, call.joint.predictor, batch.predictor.size() * each, shift),
        add(memory_, call.joint.weight, batch.weight.size() * each, shift),
        add(memory_, call.joint.bias, bias, 0),
        add(memory_, batch.lattice.targets.data(), 8 * batch.lattice.targets.size()),
        add(memory_, batch.samples.data(), 8 * batch.samples.size())};
    const bool each_clip = call.args.reduction == TransducerReduction::none;
    const std::vector<float> upstream(each_clip ? batch.lattice.sizes.size() : 1, 1.0F);
    upstream_ = add(memory_, upstream.data(), 4 * upstream.size());
    losses_ = memory_.add(static_cast<std::int64_t>(4 * upstream.size()), 4);
    const std::size_t sizes[] = {batch.encoder.size(), batch.predictor.size(), batch.weight.size(),
                                 call.joint.bias == nullptr ? 0 : batch.bias.size()};
    for (std::size_t i = 0; i < 4; ++i)
      grads_[i] = memory_.add(static_cast<std::int64_t>(4 * sizes[i]), 4 * phase);
    memory_.upload(stream);
    forget();
    call_.args.device = kGpu;
    call_.args.stream = stream;
    call_.args.targets = reinterpret_cast<const std::int64_t*>(memory_.device(inputs[4]));
    call_.joint.encoder = memory_.device(inputs[0]);
    call_.joint.predictor = memory_.device(inputs[1]);
    call_.joint.weight = memory_.device(inputs[2]);
    if (call.joint.bias != nullptr) call_.joint.bias = memory_.device(inputs[3]);
    call_.joint.samples = reinterpret_cast<const std::int64_t*>(memory_.device(inputs[5]));
    const auto bytes = octavo::transducer_joint_bytes(call_.args, call_.joint).value();
    workspace_.emplace(bytes.workspace + 16, memory);
    scratch_.emplace(bytes.scratch + 16, memory);
    call_.args.workspace = workspace_->span().subspan(16);
    call_.joint.scratch = scratch_->span().subspan(16);
  }

  Status loss() { return octavo::transducer_joint_loss(call_.args, call_.joint, floats(memory_, losses_)); }
  // `wanted` has a bit for each gradient.
  Status gradient(unsigned wanted = 15) {
    const auto to = [&](std::size_t i) {
      const bool given = (wanted >> i & 1U) != 0 && (i < 3 || call_.joint.bias != nullptr);
      return given ? floats(memory_, grads_[i]) : nullptr;
    };
    return octavo::transducer_joint_gradient(call_.args, call_.joint, floats(memory_, upstream_),
                                             {to(0), to(1), to(2), to(3)});
  }
  Status both() {
    Status status = loss();
    return status.ok() ? gradient() : status;
  }
  // Returns "" if no guard byte changed.
  std::string download() {
    memory_.download(stream_);
    const bool intact = workspace_->surroundings_intact(stream_) && scratch_->surroundings_intact(stream_);
    return memory_.damaged() || !intact ? "bytes around a buffer changed" : "";
  }
  // Fills the outputs with this byte; 0xFF makes NaN.
  void forget(int byte = 0xFF) {
    for (std::size_t slot = losses_; slot <= grads_[3]; ++slot)
      std::memset(memory_.host(slot), byte, usize(memory_.size(slot)));
    memory_.upload(stream_, losses_);
  }
  [[nodiscard]] std::vector<float> losses() { return values(memory_, losses_); }
  [[nodiscard]] JointGradients gradients() {
    return {values(memory_, grads_[0]), values(memory_, grads_[1]), values(memory_, grads_[2]),
            values(memory_, grads_[3])};
  }
  Call& call() { return call_; }

 private:
  DeviceMemory memory_;
  Call call_;
  cudaStream_t stream_;
  std::size_t upstream_ = 0, losses_ = 0, grads_[4] = {};
  std::optional<DeviceWorkspace> workspace_, scratch_;
};

std::string far_from(const JointGradients& got, const JointGradients& want, Tolerance tolerance) {
  std::string text = far_from("encoder", got.encoder, want.encoder, tolerance);
  if (text.empty()) text = far_from("predictor", got.predictor, want.predictor, tolerance);
  if (text.empty()) text = far_from("weight", got.weight, want.weight, tolerance);
  return text.empty() ? far_from("bias", got.bias, want.bias, tolerance) : text;
}

// Returns "" if losses and gradients equal the CPU's and have the same bits twice.
std::string compare(const Case& c, cudaStream_t stream, Memory memory = Memory::together) {
  JointBatch batch = batch_of(c);
  const Call call = call_of(c, batch);
  const std::vector<float> losses = batch.losses(call.args, call.joint);
  JointGradients gradients = batch.empty();
  if (call.joint.bias == nullptr) gradients.bias.clear();
  const std::vector<float> ones(losses.size(), 1.0F);
  JointBatch::check(octavo::transducer_joint_gradient(
      call.args, call.joint, ones.data(),
      {gradients.encoder.data(), gradients.predictor.data(), gradients.weight.data(),
       call.joint.bias == nullptr ? nullptr : gradients.bias.data()}));
  DeviceJoint device(batch, call, c.phase, memory, stream);
  std::optional<std::pair<std::vector<float>, JointGradients>> first;
  for (int turn = 0; turn < 2; ++turn) {
    if (const Status bad = device.both(); !bad.ok()) return bad.message();
    if (std::string text = device.download(); !text.empty()) return text;
    const std::pair got(device.losses(), device.gradients());
    if (std::string text = far_from("loss", got.first, losses, kLosses); !text.empty()) return text;
    if (std::string text = far_from(got.second, gradients, c.gradients()); !text.empty()) return text;
    if (first && *first != got) return "the second time has other bits";
    first = got;
    device.forget();
  }
  return "";
}

TEST_F(TransducerJointCuda, EqualsTheCpu) {
  const Stream stream;
  Tally tally;
  std::vector<std::int64_t> many(40);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i);
  const std::vector<std::int64_t> durations[] = {{0, 1, 2, 3, 4}, {1, 2}, {}, {8, 0, 2000000000, 1}, many};
  const std::int64_t tiles[] = {0, 1, 16, 100}, hidden[] = {20, 7, 72, 136}, tokens[] = {5, 33, 1025};
  std::size_t turn = 0;
  for (const DType dtype : octavo::all_dtypes()) {
    for (const auto& advances : durations) {
      for (const std::int64_t tile : tiles) {
        ++turn;
        Case c;
        c.dtype = dtype;
        c.durations = advances;
        c.vocabulary = tokens[turn % 3];
        c.hidden = hidden[turn / 2 % 4];
        c.tile = tile;
        c.dropout = turn % 2 == 0 ? 0.5 : 0.0;
        c.reduction = static_cast<TransducerReduction>(turn % 5);
        c.bias = static_cast<int>(turn % 3);
        c.phase = turn % 4 == 3 ? 1 : 0;
        c.omega = !advances.empty() && turn % 7 == 0 ? 1.0 : 0.0;
        tally.add(c.text(), compare(c, stream));
      }
    }
  }
}

// A vocabulary of a real model, more clips than a launch carries, and transcripts that do not fit into the
// ring.
TEST_F(TransducerJointCuda, LargeSizesEqualTheCpu) {
  const Stream stream;
  Tally tally;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Case c;
    c.dtype = dtype;
    c.clips = {{6, 4}, {3, 2}};
    c.vocabulary = 8193;
    c.hidden = 640;
    c.tile = 25;
    c.dropout = 0.5;
    tally.add(c.text(), compare(c, stream));
  }
  Case many;
  many.clips.assign(300, {2, 1});
  for (std::size_t i = 0; i < 300; i += 7) many.clips[i] = {3, 2};
  many.tile = 50;
  tally.add("300 clips", compare(many, stream));
  Case wide;
  wide.clips = {{3, 4000}, {2, 1}};
  wide.durations = {0, 1};
  wide.vocabulary = 5;
  wide.hidden = 8;
  wide.slack = 8.0;  // the square root of that many more steps
  tally.add("4000 labels", compare(wide, stream));
}

TEST_F(TransducerJointCuda, OnlyWhatIsWantedIsWritten) {
  const Stream stream;
  Case c;
  JointBatch batch = batch_of(c);
  DeviceJoint device(batch, call_of(c, batch), 0, Memory::together, stream);
  JointBatch::check(device.both());
  ASSERT_EQ(device.download(), "");
  const JointGradients all = device.gradients();
  for (unsigned wanted = 0; wanted < 16; ++wanted) {
    device.forget(0);
    JointBatch::check(device.gradient(wanted));
    ASSERT_EQ(device.download(), "");
    const JointGradients some = device.gradients();
    const auto expect = [&](unsigned bit, const std::vector<float>& got, const std::vector<float>& full) {
      EXPECT_EQ(got, (wanted >> bit & 1U) != 0 ? full : std::vector<float>(full.size(), 0.0F)) << wanted;
    };
    expect(0, some.encoder, all.encoder);
    expect(1, some.predictor, all.predictor);
    expect(2, some.weight, all.weight);
    expect(3, some.bias, all.bias);
  }
}

TEST_F(TransducerJointCuda, TilesChangeNoMoreThanTheOrderOfSums) {
  const Stream stream;
  Case c;
  c.vocabulary = 33;
  std::optional<JointGradients> first;
  for (const std::int64_t tile : {0, 1, 7, 30, 61}) {
    c.tile = tile;
    JointBatch batch = batch_of(c);
    DeviceJoint device(batch, call_of(c, batch), 0, Memory::together, stream);
    JointBatch::check(device.both());
    ASSERT_EQ(device.download(), "");
    if (!first) first = device.gradients();
    EXPECT_EQ(far_from(device.gradients(), *first, {0.0, 3e-6}), "") << tile;
  }
}

TEST_F(TransducerJointCuda, AWorkspaceOfAnotherLossGivesNaN) {
  const Stream stream;
  Case c;
  JointBatch batch = batch_of(c);
  DeviceJoint device(batch, call_of(c, batch), 0, Memory::together, stream);
  JointBatch::check(device.loss());
  device.call().args.sigma = 0.5;
  JointBatch::check(device.gradient());
  ASSERT_EQ(device.download(), "");
  for (const float x : device.gradients().weight) ASSERT_TRUE(std::isnan(x));
  // An invalid label.
  Case wrong;
  wrong.clips = {{3, 2}, {3, 2}};
  JointBatch bad = batch_of(wrong);
  const Call call = call_of(wrong, bad);
  const float good = bad.losses(call.args, call.joint)[1];
  bad.lattice.targets[1] = 100;
  DeviceJoint other(bad, call, 0, Memory::together, stream);
  JointBatch::check(other.both());
  ASSERT_EQ(other.download(), "");
  EXPECT_TRUE(std::isnan(other.losses()[0]));
  EXPECT_NEAR(other.losses()[1], good, 1e-5);
  const std::vector<float> encoder = other.gradients().encoder;
  const auto is_nan = [](float x) { return std::isnan(x); };
  const auto second = encoder.begin() + 3 * bad.hidden;
  EXPECT_TRUE(std::any_of(encoder.begin(), second, is_nan));
  EXPECT_TRUE(std::none_of(second, encoder.end(), is_nan));
}

TEST_F(TransducerJointCuda, ReplaysInAGraph) {
  const Stream stream;
  Case c;
  c.dropout = 0.5;
  JointBatch batch = batch_of(c);
  DeviceJoint device(batch, call_of(c, batch), 0, Memory::together, stream);
  JointBatch::check(device.both());  // loads the kernels
  ASSERT_EQ(device.download(), "");
  const auto losses = device.losses();
  const JointGradients gradients = device.gradients();
  const Graph graph(stream, [&] { return device.both(); });
  device.forget();
  graph.launch(stream);
  ASSERT_EQ(device.download(), "");
  EXPECT_EQ(device.losses(), losses);
  EXPECT_EQ(device.gradients(), gradients);
}

TEST_F(TransducerJointCuda, RefusesHostMemory) {
  const Stream stream;
  Case c;
  JointBatch batch = batch_of(c);
  const Call call = call_of(c, batch);
  DeviceJoint device(batch, call, 0, Memory::together, stream);
  device.call().joint.weight = call.joint.weight;
  EXPECT_THAT(device.loss().message(), HasSubstr("[transducer] weight: got a host pointer"));
  EXPECT_THAT(device.gradient().message(), HasSubstr("[transducer] weight: got a host pointer"));
}

TEST_F(SmallTransducerJointCuda, EqualsTheCpu) {
  const Stream stream;
  Tally tally;
  int turn = 0;
  for (const DType dtype : octavo::all_dtypes()) {
    for (const std::int64_t hidden : {7, 24}) {
      ++turn;
      Case c;
      c.dtype = dtype;
      c.clips = {{4, 2}, {1, 0}, {3, 3}};
      c.vocabulary = 33;
      c.hidden = hidden;
      c.tile = 9;
      c.dropout = 0.5;
      c.bias = turn % 3;
      c.phase = turn % 2;
      c.durations = turn == 4 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{0, 1, 2};
      tally.add(c.text(), compare(c, stream, Memory::apart));
    }
  }
}

}  // namespace
}  // namespace test
