// Activation checkpointing: gradients in bits those of the plain segment, with dropout, autocast and nesting.
// SPDX-License-Identifier: MIT
#include "checkpointing.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <vector>

namespace octavo::train {
namespace {

using torch::Tensor;

struct Net {
  torch::nn::Linear first{32, 64}, second{64, 32};
  int runs = 0;

  Tensor block(const Tensor& x) {
    ++runs;
    return second(torch::dropout(torch::gelu(first(x)), 0.3, true)) + x;
  }
  std::vector<Tensor> grads() {
    std::vector<Tensor> out;
    for (auto* layer : {&first, &second}) {
      for (Tensor& parameter : (*layer)->parameters()) {
        out.push_back(parameter.grad().clone());
        parameter.mutable_grad().reset();
      }
    }
    return out;
  }
};

struct Outcome {
  Tensor output, input_grad, next_random;
  std::vector<Tensor> grads;
};

template <class Forward>
Outcome train(Net& net, Forward&& forward) {
  torch::manual_seed(7);
  Tensor x = torch::randn({5, 32}).requires_grad_();
  Outcome out;
  out.output = forward(x);
  out.output.square().sum().backward();
  out.next_random = torch::randn({4});  // the generator is where it was
  out.input_grad = x.grad();
  out.grads = net.grads();
  return out;
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(torch::equal(a.output, b.output));
  EXPECT_TRUE(torch::equal(a.input_grad, b.input_grad));
  EXPECT_TRUE(torch::equal(a.next_random, b.next_random));
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (std::size_t i = 0; i < a.grads.size(); ++i) EXPECT_TRUE(torch::equal(a.grads[i], b.grads[i])) << i;
}

TEST(Checkpointing, GradientsAreThoseOfThePlainSegment) {
  Net net;
  const auto plain = train(net, [&](const Tensor& x) { return net.block(net.block(x)); });
  EXPECT_EQ(net.runs, 2);
  net.runs = 0;
  const auto segment = [&](const std::vector<Tensor>& in) { return net.block(in[0]); };
  const auto kept =
      train(net, [&](const Tensor& x) { return checkpoint(segment, {checkpoint(segment, {x})}); });
  EXPECT_EQ(net.runs, 4);  // each once more, in the backward pass
  expect_equal(plain, kept);
}

TEST(Checkpointing, SegmentsNest) {
  Net net;
  const auto plain = train(net, [&](const Tensor& x) { return net.block(net.block(x)) * 2; });
  const auto inner = [&](const std::vector<Tensor>& in) { return net.block(in[0]); };
  const auto outer = [&](const std::vector<Tensor>& in) {
    return checkpoint(inner, {checkpoint(inner, {in[0]})}) * 2;
  };
  expect_equal(plain, train(net, [&](const Tensor& x) { return checkpoint(outer, {x}); }));
}

TEST(Checkpointing, WorksUnderAutocast) {
  Net net;
  const auto with_autocast = [&](auto&& forward) {
    return train(net, [&](const Tensor& x) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::increment_nesting();
      Tensor out = forward(x);
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return out.to(torch::kFloat32);
    });
  };
  const auto plain = with_autocast([&](const Tensor& x) { return net.block(x); });
  const auto segment = [&](const std::vector<Tensor>& in) { return net.block(in[0]); };
  const auto kept = with_autocast([&](const Tensor& x) { return checkpoint(segment, {x}); });
  expect_equal(plain, kept);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  // bf16 products: not what fp32 gives.
  EXPECT_FALSE(torch::equal(plain.output, train(net, [&](const Tensor& x) { return net.block(x); }).output));
}

TEST(Checkpointing, SeveralInputsOfWhichSomeNeedNoGradient) {
  Net net;
  const Tensor scale = torch::full({32}, 3.0);
  const auto plain = train(net, [&](const Tensor& x) { return net.block(x) * scale; });
  const auto segment = [&](const std::vector<Tensor>& in) { return net.block(in[0]) * in[1]; };
  expect_equal(plain, train(net, [&](const Tensor& x) { return checkpoint(segment, {x, scale}); }));
}

TEST(Checkpointing, WithoutGradientsTheSegmentIsJustCalled) {
  Net net;
  const auto segment = [&](const std::vector<Tensor>& in) { return net.block(in[0]); };
  const Tensor x = torch::randn({5, 32});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint(segment, {x.clone().requires_grad_()}).requires_grad());
  }
  EXPECT_EQ(net.runs, 1);
  // No input needs a gradient but the parameters do: nothing is dropped, so that they get theirs.
  checkpoint(segment, {x}).sum().backward();
  EXPECT_EQ(net.runs, 2);
  EXPECT_TRUE(net.first->weight.grad().defined());
}

}  // namespace
}  // namespace octavo::train
