// Tests counter-based dropout on torch tensors: the core's bits, gradients with the same mask, and
// independence of a sample's position in the batch, of torch's generators and of recomputed activations.
// SPDX-License-Identifier: MIT
#include "train/nn/dropout.h"
#include "tests/train/parts_support.h"
#include "train/nn/attention.h"
#include "train/nn/recompute.h"

#include <octavo/dropout.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace octavo_train {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

const DropoutKey kPass{11, 12, torch::tensor({5, 3, 70, 9}, torch::kInt64)};
constexpr std::uint32_t kLayer = 4;

Tensor dropped(const Tensor& x, std::int64_t dim = 0, double probability = 0.3) {
  return dropout(x, probability, true, kPass, kLayer, dim);
}

// Applies the core library's dropout to a contiguous float32 tensor.
Tensor by_the_core(const Tensor& x, std::int64_t outer, std::int64_t inner, const Tensor& samples) {
  Tensor out = torch::empty_like(x);
  octavo::DropoutArgs args;
  args.from = x.const_data_ptr();
  args.to = out.data_ptr();
  args.outer = outer;
  args.batch = samples.numel();
  args.inner = inner;
  args.samples = samples.const_data_ptr<std::int64_t>();
  args.probability = 0.3;
  args.seed = 11;
  args.step = 12;
  args.layer = kLayer;
  EXPECT_TRUE(octavo::dropout(args).ok());
  return out;
}

TEST(TrainDropout, HasTheCoresBits) {
  torch::manual_seed(1);
  const Tensor x = torch::randn({4, 30, 50});
  EXPECT_TRUE(torch::equal(dropped(x), by_the_core(x, 1, 1500, kPass.samples)));
  const Tensor heads = torch::randn({3, 4, 50});
  EXPECT_TRUE(torch::equal(dropped(heads, 1), by_the_core(heads, 3, 50, kPass.samples)));
  const Tensor last = torch::randn({3, 50, 4});
  EXPECT_TRUE(torch::equal(dropped(last, 2), by_the_core(last, 150, 1, kPass.samples)));
  // A view that is not contiguous: elements are counted in the order of its indices.
  const Tensor turned = torch::randn({50, 30, 4}).permute({2, 1, 0});
  EXPECT_TRUE(torch::equal(dropped(turned), dropped(turned.contiguous())));
  EXPECT_EQ(dropped(x).count_nonzero().item<std::int64_t>(),
            dropped(torch::ones({4, 1500})).count_nonzero().item<std::int64_t>());
}

TEST(TrainDropout, EveryTypeHasTheSameMask) {
  const Tensor x = torch::rand({4, 333}) + 0.5;
  const Tensor mask = dropped(x) != 0;
  for (const auto type : {torch::kBFloat16, torch::kFloat16, torch::kFloat64}) {
    const Tensor y = dropped(x.to(type));
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_TRUE(torch::equal(y != 0, mask)) << type;
    // Each type computes x / 0.7 with another formula, so the result may differ by one unit in the last
    // place.
    const double near = type == torch::kBFloat16 ? 0x1p-7 : type == torch::kFloat16 ? 0x1p-10 : 2e-5;
    EXPECT_TRUE(torch::allclose(y.to(torch::kFloat64), x.to(type).to(torch::kFloat64) / 0.7 * mask, near));
  }
}

TEST(TrainDropout, TheGradientHasTheSameMask) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat64}) {
    Tensor x = torch::randn({4, 600}, type).requires_grad_();
    const Tensor weight = torch::randn({4, 600}, type);
    (dropped(x) * weight).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), dropped(weight))) << type;
    // A gradient that is not contiguous: the gradient of a sum is one expanded number.
    x.mutable_grad().reset();
    dropped(x).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), dropped(torch::ones({4, 600}, type)))) << type;
  }
  // The second derivative has the same mask too.
  Tensor x = torch::ones({4, 9}).requires_grad_(), weight = torch::ones({4, 9}).requires_grad_();
  const auto first = torch::autograd::grad({(dropped(x) * weight).sum()}, {x}, {}, {}, true);
  first[0].sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), dropped(torch::ones({4, 9}))));
}

TEST(TrainDropout, ActsInTrainingOnly) {
  const Tensor x = torch::randn({4, 5});
  EXPECT_TRUE(dropout(x, 0.5, false, {}, 0).is_same(x));
  EXPECT_TRUE(dropout(x, 0.0, true, {}, 0).is_same(x));
  EXPECT_EQ(dropped(torch::ones({4, 0})).numel(), 0);
}

TEST(TrainDropout, ABatchMayBeSplitAndTurned) {
  const Tensor x = torch::randn({4, 77});
  const Tensor whole = dropped(x);
  const auto part = [&](const Tensor& rows) {
    return dropout(x.index({rows}), 0.3, true, {11, 12, kPass.samples.index({rows})}, kLayer);
  };
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{2}, {3, 1}, {1, 0, 3, 2}}) {
    const Tensor index = torch::tensor(rows, torch::kInt64);
    EXPECT_TRUE(torch::equal(part(index), whole.index({index})));
  }
  // Another layer, step or seed gives another mask.
  EXPECT_FALSE(torch::equal(dropout(x, 0.3, true, kPass, kLayer + 1), whole));
  EXPECT_FALSE(torch::equal(dropout(x, 0.3, true, {11, 13, kPass.samples}, kLayer), whole));
  EXPECT_FALSE(torch::equal(dropout(x, 0.3, true, {12, 12, kPass.samples}, kLayer), whole));
}

// A part of a larger matrix has the mask of the larger matrix, and so have its gradients.
TEST(TrainDropout, APitchMakesPaddingNotMatter) {
  constexpr std::int64_t kPitch = 65536;
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat64}) {
    const Tensor large = (torch::rand({4, 7, 300}) + 0.5).to(type);
    const Tensor whole = dropout(large, 0.3, true, kPass, kLayer, 0, kPitch);
    Tensor small = large.slice(1, 0, 5).slice(2, 0, 33).contiguous().requires_grad_();
    const Tensor part = dropout(small, 0.3, true, kPass, kLayer, 0, kPitch);
    EXPECT_TRUE(torch::equal(part, whole.slice(1, 0, 5).slice(2, 0, 33))) << type;
    EXPECT_FALSE(torch::equal(part, dropped(small)));
    part.sum().backward();
    EXPECT_TRUE(torch::equal(small.grad() != 0, part != 0)) << type;
  }
}

// A clip's dropped probabilities are the same in any batch.
TEST(TrainDropout, AttentionDropsTheSameInAnyBatch) {
  torch::manual_seed(4);
  const Tensor x = torch::randn({4, 9, 2, 8});
  const Tensor positions = torch::randn({17, 2, 8}), bias = torch::randn({2, 8});
  const Tensor lengths = torch::tensor({6, 9, 4, 9}, torch::kInt64);
  const Tensor all = relative_attention(x, x, x, positions, bias, bias, lengths, {0.3, true, kPass, kLayer});
  EXPECT_FALSE(torch::allclose(
      all, relative_attention(x, x, x, positions, bias, bias, lengths, {0.3, false, kPass, kLayer})));
  for (const std::int64_t clip : {0, 2}) {
    const std::int64_t length = lengths[clip].item<std::int64_t>();
    const Tensor own = x.slice(0, clip, clip + 1).slice(1, 0, length);
    const DropoutKey pass{kPass.seed, kPass.step, kPass.samples.slice(0, clip, clip + 1)};
    const Tensor near = positions.slice(0, 9 - length, 8 + length);  // positions of the same distances
    const Tensor alone = relative_attention(own, own, own, near, bias, bias, lengths.slice(0, clip, clip + 1),
                                            {0.3, true, pass, kLayer});
    EXPECT_TRUE(torch::allclose(alone[0], all[clip].slice(0, 0, length), 1e-5, 1e-6)) << clip;
  }
}

TEST(TrainDropout, TakesNoRandomNumbersAndIsRecomputed) {
  torch::manual_seed(3);
  const Tensor expected = torch::rand({4});
  torch::manual_seed(3);
  Tensor x = torch::ones({4, 64}).requires_grad_();
  const auto segment = [](const std::vector<Tensor>& in) { return dropped(in[0].sin()).exp(); };
  segment({x}).sum().backward();
  const Tensor plain = x.grad().clone();
  x.mutable_grad().reset();
  recompute(segment, {x}).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), plain));
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(TrainDropout, RefusesWhatIsNoPass) {
  const Tensor x = torch::ones({4, 5});
  EXPECT_THAT(torch_error([&] { dropped(x, 0, 1.0); }),
              HasSubstr("the probability is 1, expected at least 0"));
  EXPECT_THAT(torch_error([&] { dropped(x, 2); }), HasSubstr("dim is 2, expected 0 to 1"));
  EXPECT_THAT(torch_error([&] { dropped(x, 1); }), HasSubstr("are Long [4], expected Long [5]"));
  EXPECT_THAT(torch_error([&] { dropout(x, 0.5, true, {}, 0); }),
              HasSubstr("the pass has no sample numbers"));
  const Tensor floats = torch::ones({4});
  EXPECT_THAT(torch_error([&] { dropout(x, 0.5, true, {1, 2, floats}, 0); }), HasSubstr("are Float [4]"));
}

}  // namespace
}  // namespace octavo_train
