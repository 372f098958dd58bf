// Compares the transducer loss on logits on the GPU with the CPU: all types, views, alignments, durations and
// reductions; wrong lengths and labels, which the host does not wait for; the same bits twice, and in a
// graph.
// SPDX-License-Identifier: MIT
#include "tests/cuda/graph.h"
#include "tests/cuda/transducers.h"
#include "tests/transducer/lattices.h"

#include <gmock/gmock.h>

#include <optional>

namespace test {
namespace {

using octavo::Status;
using octavo::TransducerView;
using ::testing::HasSubstr;

class TransducerCuda : public GpuTest {};
class SmallTransducerCuda : public GpuTest {};

const std::vector<ClipSize> kClips = {{9, 4}, {1, 0}, {12, 6}, {5, 0}, {1, 5}, {12, 1}};

// The memory of the gradient: over the logits, in their layout, or in two separate tensors with another
// alignment.
enum class Grads { in_place, beside, apart };

struct Case {
  DType dtype = DType::f32;
  std::vector<ClipSize> clips = kClips;
  std::vector<std::int64_t> durations = {0, 1, 2, 3, 4};
  std::int64_t vocabulary = 7;
  std::int64_t phase = 0, grad_phase = 0;  // elements after a multiple of 64 bytes
  Grads grads = Grads::beside;
  TransducerReduction reduction = TransducerReduction::none;
  double omega = 0.0;

  [[nodiscard]] std::string text() const {
    return std::string(octavo::name(dtype)) + " durations " + std::to_string(durations.size()) + " tokens " +
           std::to_string(vocabulary) + " phases " + std::to_string(phase) + " " +
           std::to_string(grad_phase) + " gradient " + std::to_string(static_cast<int>(grads)) +
           " reduction " + std::to_string(static_cast<int>(reduction));
  }
  // One rounding to the type, to a neighbour; the rest is fp32's error.
  [[nodiscard]] Tolerance gradients() const {
    return {dtype == DType::f32 ? 0.0 : dtype == DType::bf16 ? 0x1p-7 : 0x1p-10, 1e-5};
  }
};

LatticeBatch batch_of(const Case& c) {
  LatticeBatch batch(c.clips, c.durations, c.vocabulary, 5, c.dtype);
  batch.sigma = c.durations.empty() ? 0.0 : 0.05;
  batch.reduction = c.reduction;
  return batch;
}

// A copy of a batch on the device.
class DeviceLattice {
 public:
  DeviceLattice(LatticeBatch& batch, const Case& c, Memory memory, cudaStream_t stream)
      : batch_(batch), memory_(memory), args_(batch.args()), stream_(stream) {
    const auto each = static_cast<std::int64_t>(batch.bytes_each());
    const auto durations = static_cast<std::int64_t>(c.durations.size());
    const std::int64_t rows = batch.batch() * batch.frames * batch.positions;
    const bool clips = c.reduction == TransducerReduction::none;
    const std::vector<float> upstream(clips ? c.clips.size() : 1, 1.0F);
    const std::size_t lists[] = {add(memory_, batch.targets.data(), 8 * batch.targets.size()),
                                 add(memory_, batch.logit_lengths.data(), 8 * batch.logit_lengths.size()),
                                 add(memory_, batch.target_lengths.data(), 8 * batch.target_lengths.size())};
    upstream_ = add(memory_, upstream.data(), 4 * upstream.size());
    logits_ = add(memory_, batch.logits.data(), batch.logits.size(), c.phase * each);
    losses_ = memory_.add(static_cast<std::int64_t>(4 * upstream.size()), 4);
    const bool apart = c.grads == Grads::apart;
    tokens_ = memory_.add(rows * (apart ? batch.tokens : batch.outputs) * each, c.grad_phase * each);
    durations_ = memory_.add(apart ? rows * durations * each : 0, each);
    memory_.upload(stream);
    forget();
    args_.device = kGpu;
    args_.stream = stream;
    args_.targets = reinterpret_cast<const std::int64_t*>(memory_.device(lists[0]));
    args_.logit_lengths = reinterpret_cast<const std::int64_t*>(memory_.device(lists[1]));
    args_.target_lengths = reinterpret_cast<const std::int64_t*>(memory_.device(lists[2]));
    args_.omega = c.omega;
    const auto views = [&](std::size_t slot) {
      std::byte* const data = memory_.device(slot);
      return std::pair<void*, void*>(data, data + batch.tokens * each);
    };
    std::tie(token_grad_.data, duration_grad_.data) = views(c.grads == Grads::in_place ? logits_ : tokens_);
    token_grad_.strides = duration_grad_.strides = batch.strides();
    if (apart) {
      token_grad_ = {memory_.device(tokens_), {}};
      duration_grad_ = {memory_.device(durations_), {}};
    }
    const auto [tokens, lasts] = views(logits_);
    args_.token_logits.data = tokens;
    args_.duration_logits.data = lasts;
    workspace_.emplace(octavo::transducer_workspace_bytes(args_).value() + 16, memory);
    args_.workspace = workspace_->span().subspan(16);
    where_ = c.grads;
  }

  Status loss() { return octavo::transducer_loss(args_, floats(memory_, losses_)); }
  Status gradient() {
    return octavo::transducer_gradient(args_, floats(memory_, upstream_), token_grad_, duration_grad_);
  }
  Status both() {
    const Status status = loss();
    return status.ok() ? gradient() : status;
  }
  std::string download() {
    memory_.download(stream_);
    const bool intact = workspace_->surroundings_intact(stream_);
    return memory_.damaged() || !intact ? "bytes around a buffer changed" : "";
  }
  // Resets the outputs to NaN, and the logits to their values.
  void forget() {
    std::memcpy(memory_.host(logits_), batch_.logits.data(), batch_.logits.size());
    for (const std::size_t slot : {losses_, tokens_, durations_})
      std::memset(memory_.host(slot), 0xFF, usize(memory_.size(slot)));
    memory_.upload(stream_, logits_);
  }
  [[nodiscard]] std::vector<float> losses() { return values(memory_, losses_); }
  // Returns them as one tensor.
  [[nodiscard]] std::vector<float> gradients() {
    std::vector<float> out;
    const std::byte* const first = memory_.host(where_ == Grads::in_place ? logits_ : tokens_);
    const std::int64_t lasts = batch_.outputs - batch_.tokens;
    const auto rows = static_cast<std::int64_t>(batch_.count()) / batch_.outputs;
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool apart = where_ == Grads::apart;
      const std::int64_t width = apart ? batch_.tokens : batch_.outputs;
      for (std::int64_t k = 0; k < width; ++k)
        out.push_back(reference::load(batch_.dtype, first, row * width + k));
      for (std::int64_t i = 0; apart && i < lasts; ++i)
        out.push_back(reference::load(batch_.dtype, memory_.host(durations_), row * lasts + i));
    }
    return out;
  }
  TransducerArgs& args() { return args_; }

 private:
  LatticeBatch& batch_;
  DeviceMemory memory_;
  TransducerArgs args_;
  cudaStream_t stream_;
  Grads where_ = Grads::beside;
  std::size_t upstream_ = 0, logits_ = 0, losses_ = 0, tokens_ = 0, durations_ = 0;
  TransducerView<void> token_grad_, duration_grad_;
  std::optional<DeviceWorkspace> workspace_;
};

void check(const Status& status) {
  if (!status.ok()) throw octavo::Error(status);
}

// Returns "" if losses and gradients equal the CPU's and have the same bits twice.
std::string compare(const Case& c, cudaStream_t stream, Memory memory = Memory::together) {
  LatticeBatch batch = batch_of(c);
  TransducerArgs args = batch.args();
  args.omega = c.omega;
  const std::vector<float> losses = batch.losses(args);
  const std::vector<std::byte> bytes = batch.gradient(args);
  std::vector<float> gradients;
  for (std::size_t i = 0; i < batch.count(); ++i)
    gradients.push_back(reference::load(batch.dtype, bytes.data(), static_cast<std::int64_t>(i)));
  DeviceLattice device(batch, c, memory, stream);
  std::optional<std::pair<std::vector<float>, std::vector<float>>> first;
  for (int turn = 0; turn < 2; ++turn) {
    if (const Status bad = device.both(); !bad.ok()) return bad.message();
    if (std::string text = device.download(); !text.empty()) return text;
    const std::pair got(device.losses(), device.gradients());
    if (std::string text = far_from("loss", got.first, losses, kLosses); !text.empty()) return text;
    if (std::string text = far_from("gradient", got.second, gradients, c.gradients()); !text.empty())
      return text;
    if (first && *first != got) return "the second time has other bits";
    first = got;
    device.forget();
  }
  return "";
}

TEST_F(TransducerCuda, EqualsTheCpu) {
  const Stream stream;
  Tally tally;
  std::vector<std::int64_t> many(40);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i);
  const std::vector<std::int64_t> durations[] = {{0, 1, 2, 3, 4}, {1, 2}, {}, {8, 0, 2000000000, 1}, many};
  const std::int64_t tokens[] = {2, 33, 1025, 300};
  std::size_t turn = 0;
  for (const DType dtype : octavo::all_dtypes()) {
    for (const auto& advances : durations) {
      for (const Grads grads : {Grads::in_place, Grads::beside, Grads::apart}) {
        ++turn;
        Case c;
        c.dtype = dtype;
        c.durations = advances;
        c.vocabulary = tokens[turn % 4];
        c.grads = grads;
        c.phase = static_cast<std::int64_t>(turn % 5);
        c.grad_phase = static_cast<std::int64_t>(turn / 3 % 9);
        c.reduction = static_cast<TransducerReduction>(turn % 5);
        c.omega = !advances.empty() && turn % 7 == 0 ? 1.0 : 0.0;
        tally.add(c.text(), compare(c, stream));
      }
    }
  }
}

// Tests every distance between a row of logits and its gradient's, for rows around the length of a vector.
TEST_F(TransducerCuda, EveryAlignmentEqualsTheCpu) {
  const Stream stream;
  Tally tally;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t phase = 0; phase < 8; ++phase) {
      for (const std::int64_t tokens : {9, 16, 31, 265}) {
        Case c;
        c.dtype = dtype;
        c.clips = {{3, 2}, {2, 1}};
        c.vocabulary = tokens;
        c.phase = 3;
        c.grad_phase = phase;
        c.grads = phase % 2 == 0 ? Grads::beside : Grads::apart;
        tally.add(c.text(), compare(c, stream));
      }
    }
  }
}

TEST_F(TransducerCuda, LargeSizesEqualTheCpu) {
  const Stream stream;
  Tally tally;
  Case c;
  c.dtype = DType::bf16;
  c.clips = {{6, 4}, {3, 2}};
  c.vocabulary = 8193;
  c.grads = Grads::apart;
  tally.add(c.text(), compare(c, stream));
  Case many;
  many.clips.assign(600, {2, 1});
  for (std::size_t i = 0; i < 600; i += 7) many.clips[i] = {3, 2};
  many.reduction = TransducerReduction::mean_volume;
  tally.add("600 clips", compare(many, stream));
}

// Wrong lengths and labels make their clip NaN, and no other.
TEST_F(TransducerCuda, WrongIndicesStayInTheirClip) {
  const Stream stream;
  Case c;
  c.clips = {{4, 2}, {4, 2}, {4, 2}, {4, 2}, {4, 2}, {4, 2}};
  LatticeBatch batch = batch_of(c);
  const std::vector<float> good = batch.losses();
  batch.logit_lengths[0] = 0;
  batch.logit_lengths[1] = 5;
  batch.target_lengths[2] = -1;
  batch.target_lengths[3] = std::int64_t{1} << 40;
  batch.targets[2 * 4] = batch.blank;
  DeviceLattice device(batch, c, Memory::together, stream);
  check(device.both());
  ASSERT_EQ(device.download(), "");
  const std::vector<float> losses = device.losses(), gradients = device.gradients();
  for (std::size_t b = 0; b < 5; ++b) {
    EXPECT_TRUE(std::isnan(losses[b])) << b;
    EXPECT_TRUE(
        std::isnan(gradients[static_cast<std::size_t>(batch.at(static_cast<std::int64_t>(b), 0, 0, 0))]))
        << b;
  }
  EXPECT_NEAR(losses[5], good[5], 1e-5);
  const auto last = gradients.begin() + batch.at(5, 0, 0, 0);
  EXPECT_TRUE(std::none_of(last, gradients.end(), [](float x) { return std::isnan(x); }));
}

TEST_F(TransducerCuda, AWorkspaceOfAnotherLossGivesNaN) {
  const Stream stream;
  Case c;
  LatticeBatch batch = batch_of(c);
  DeviceLattice device(batch, c, Memory::together, stream);
  check(device.gradient());  // a workspace that was never filled
  ASSERT_EQ(device.download(), "");
  EXPECT_TRUE(std::isnan(device.gradients()[0]));
  check(device.loss());
  device.args().sigma = 0.5;
  check(device.gradient());
  ASSERT_EQ(device.download(), "");
  EXPECT_TRUE(std::isnan(device.gradients()[0]));
}

TEST_F(TransducerCuda, ReplaysInAGraph) {
  const Stream stream;
  Case c;
  c.grads = Grads::in_place;
  LatticeBatch batch = batch_of(c);
  DeviceLattice device(batch, c, Memory::together, stream);
  check(device.both());  // loads the kernels
  ASSERT_EQ(device.download(), "");
  const std::vector<float> losses = device.losses(), gradients = device.gradients();
  const Graph graph(stream, [&] { return device.both(); });
  device.forget();
  graph.launch(stream);
  ASSERT_EQ(device.download(), "");
  EXPECT_EQ(device.losses(), losses);
  EXPECT_EQ(device.gradients(), gradients);
}

TEST_F(TransducerCuda, RefusesHostMemoryAndSumsNoClips) {
  const Stream stream;
  Case c;
  c.reduction = TransducerReduction::sum;
  LatticeBatch batch = batch_of(c);
  DeviceLattice device(batch, c, Memory::together, stream);
  const TransducerArgs args = device.args();
  device.args().targets = batch.targets.data();
  EXPECT_THAT(device.loss().message(), HasSubstr("[transducer] targets: got a host pointer"));
  device.args() = args;
  device.args().batch = 0;
  check(device.loss());
  ASSERT_EQ(device.download(), "");
  EXPECT_EQ(device.losses()[0], 0.0F);
}

TEST_F(SmallTransducerCuda, EqualsTheCpu) {
  const Stream stream;
  Tally tally;
  std::int64_t turn = 0;
  for (const DType dtype : octavo::all_dtypes()) {
    for (const Grads grads : {Grads::in_place, Grads::beside, Grads::apart}) {
      ++turn;
      Case c;
      c.dtype = dtype;
      c.clips = {{4, 2}, {1, 0}, {3, 3}};
      c.vocabulary = 25 + turn % 3;
      c.phase = turn % 4;
      c.grad_phase = turn % 3;
      c.grads = grads;
      c.durations = turn == 4 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{0, 1, 2};
      tally.add(c.text(), compare(c, stream, Memory::apart));
    }
  }
}

}  // namespace
}  // namespace test
