// Tests recomputed activations: gradients are bit-identical to those of the plain segment, with dropout,
// autocast, nesting, and buffers that are updated once.
// SPDX-License-Identifier: MIT
#include "train/nn/recompute.h"
#include "train/optim/precision.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace octavo_train {
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
  out.next_random = torch::randn({4});  // the generator's state is unchanged
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

TEST(Recompute, GradientsAreThoseOfThePlainSegment) {
  Net net;
  const auto plain = train(net, [&](const Tensor& x) { return net.block(net.block(x)); });
  EXPECT_EQ(net.runs, 2);
  net.runs = 0;
  const auto segment = [&](const std::vector<Tensor>& in) { return net.block(in[0]); };
  const auto kept =
      train(net, [&](const Tensor& x) { return recompute(segment, {recompute(segment, {x})}); });
  EXPECT_EQ(net.runs, 4);  // each runs once more in the backward pass
  expect_equal(plain, kept);
}

TEST(Recompute, SegmentsNest) {
  Net net;
  const auto plain = train(net, [&](const Tensor& x) { return net.block(net.block(x)) * 2; });
  const auto inner = [&](const std::vector<Tensor>& in) { return net.block(in[0]); };
  const auto outer = [&](const std::vector<Tensor>& in) {
    return recompute(inner, {recompute(inner, {in[0]})}) * 2;
  };
  expect_equal(plain, train(net, [&](const Tensor& x) { return recompute(outer, {x}); }));
}

TEST(Recompute, WorksUnderAutocast) {
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
  const auto kept = with_autocast([&](const Tensor& x) { return recompute(segment, {x}); });
  expect_equal(plain, kept);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  // The matmuls are in bf16, so the result differs from fp32.
  EXPECT_FALSE(torch::equal(plain.output, train(net, [&](const Tensor& x) { return net.block(x); }).output));
}

TEST(Recompute, SeveralInputsOfWhichSomeNeedNoGradient) {
  Net net;
  const Tensor scale = torch::full({32}, 3.0);
  const auto plain = train(net, [&](const Tensor& x) { return net.block(x) * scale; });
  const auto segment = [&](const std::vector<Tensor>& in) { return net.block(in[0]) * in[1]; };
  expect_equal(plain, train(net, [&](const Tensor& x) { return recompute(segment, {x, scale}); }));
}

// Convolutions with a BatchNorm. Each forward pass updates its statistics and its counter.
struct Convolutions {
  torch::nn::Conv2d convolution{torch::nn::Conv2dOptions(3, 3, 3).padding(1)};
  torch::nn::BatchNorm2d norm{3};

  Tensor block(const Tensor& x) { return torch::relu(norm(convolution(x))) + x; }
  Tensor recomputed(const Tensor& x) {
    return recompute([this](const std::vector<Tensor>& in) { return block(in[0]); }, {x}, norm->buffers());
  }
  void take_grads(std::vector<Tensor>& to) {
    for (torch::nn::Module* module : std::initializer_list<torch::nn::Module*>{&*convolution, &*norm}) {
      for (Tensor& parameter : module->parameters()) {
        to.push_back(parameter.grad());
        parameter.mutable_grad().reset();
      }
    }
  }
  // Returns the outputs, buffers and gradients of three steps.
  template <class Forward>
  std::vector<Tensor> train(Forward&& forward) {
    norm->reset_running_stats();
    torch::manual_seed(3);
    std::vector<Tensor> all;
    for (int step = 0; step < 3; ++step) {
      Tensor x = torch::randn({4, 3, 6, 5}).requires_grad_();
      all.push_back(forward(x));
      all.back().to(torch::kFloat32).square().sum().backward();
      all.push_back(x.grad());
      for (const Tensor& buffer : norm->buffers()) all.push_back(buffer.clone());
      take_grads(all);
    }
    return all;
  }
};

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST(Recompute, BuffersAreUpdatedOnce) {
  Convolutions net;
  const auto plain = net.train([&](const Tensor& x) { return net.block(net.block(x)); });
  EXPECT_EQ(net.norm->num_batches_tracked.item<std::int64_t>(), 6);
  expect_equal(plain, net.train([&](const Tensor& x) { return net.recomputed(net.recomputed(x)); }));
  EXPECT_EQ(net.norm->num_batches_tracked.item<std::int64_t>(), 6);
  // One graph uses the same module inside and outside of a segment.
  expect_equal(plain, net.train([&](const Tensor& x) { return net.recomputed(net.block(x)); }));
  expect_equal(plain, net.train([&](const Tensor& x) { return net.block(net.recomputed(x)); }));
}

TEST(Recompute, BuffersAreUpdatedOnceWhereSegmentsNest) {
  Convolutions net;
  const auto plain = net.train([&](const Tensor& x) { return net.block(net.block(x)) * 2; });
  const auto outer = [&](const std::vector<Tensor>& in) { return net.recomputed(net.recomputed(in[0])) * 2; };
  expect_equal(plain, net.train([&](const Tensor& x) { return recompute(outer, {x}, net.norm->buffers()); }));
}

TEST(Recompute, BuffersAreUpdatedOnceUnderAutocast) {
  Convolutions net;
  const auto with_autocast = [&](auto&& forward) {
    return net.train([&](const Tensor& x) {
      const AutocastScope autocast(torch::kCPU, ComputeType::bfloat16);
      return forward(x);
    });
  };
  // The block is used once, because a plain forward pass casts a weight once for all its uses and adds their
  // gradients in bf16, while segments add theirs in fp32.
  const auto plain = with_autocast([&](const Tensor& x) { return net.block(x); });
  expect_equal(plain, with_autocast([&](const Tensor& x) { return net.recomputed(x); }));
  EXPECT_FALSE(torch::equal(plain[0], net.train([&](const Tensor& x) { return net.block(x); })[0]));
}

TEST(Recompute, ASegmentSeesTheBuffersOfItsFirstRun) {
  const Tensor scale = torch::ones({1});
  const auto segment = [&](const std::vector<Tensor>& in) {
    scale.add_(1);
    return in[0].sin() * scale.clone();
  };
  Tensor x = torch::full({1}, 0.5).requires_grad_();
  const Tensor once = recompute(segment, {x}, {scale});   // sin(x) * 2
  const Tensor twice = recompute(segment, {x}, {scale});  // sin(x) * 3
  once.backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().cos() * 2));
  EXPECT_EQ(scale.item<float>(), 3.0F);
  x.mutable_grad().reset();
  twice.backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().cos() * 3));
  EXPECT_EQ(scale.item<float>(), 3.0F);
}

TEST(Recompute, WithoutGradientsTheSegmentIsJustCalled) {
  Net net;
  const auto segment = [&](const std::vector<Tensor>& in) { return net.block(in[0]); };
  const Tensor x = torch::randn({5, 32});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(recompute(segment, {x.clone().requires_grad_()}).requires_grad());
  }
  EXPECT_EQ(net.runs, 1);
  // The input does not need a gradient, but the parameters do: the graph is kept, so that they get theirs.
  recompute(segment, {x}).sum().backward();
  EXPECT_EQ(net.runs, 2);
  EXPECT_TRUE(net.first->weight.grad().defined());
}

}  // namespace
}  // namespace octavo_train
