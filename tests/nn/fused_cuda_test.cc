// Tests the functions of train/nn that have CUDA kernels against their plain compositions, which run in
// float64 on the CPU: values, all gradients, statistics and masks; repeated runs give the same bits. Single
// elements may differ by rounding, so norms over a tensor are compared; a wrong element would change them.
// SPDX-License-Identifier: MIT
#include "tests/nn/gpu.h"
#include "train/nn/convolution.h"
#include "train/nn/recompute.h"
#include "train/nn/residual.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace octavo_train {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

class NnCuda : public NnGpuTest {
 protected:
  void SetUp() override {
    NnGpuTest::SetUp();
    torch::manual_seed(3);
  }
};

// Returns the tolerance for one rounding; for fp32 it also covers the sums inside.
double unit(torch::ScalarType type) { return type == torch::kBFloat16 ? 0x1p-8 : 3e-6; }

// Compares the error's norm with the tensor's norm, and its largest element with the tensor's largest.
void expect_near(const std::string& name, const Tensor& got, const Tensor& want, double relative) {
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  const Tensor error = got.detach().cpu().to(torch::kFloat64) - want.detach().cpu();
  const Tensor right = want.detach().cpu();
  EXPECT_LE(error.norm().item<double>(), relative * right.norm().item<double>() + 1e-12) << name;
  EXPECT_LE(error.abs().max().item<double>(), 4 * relative * right.abs().max().item<double>() + 1e-12)
      << name;
}
void expect_same(const std::string& name, const Tensor& a, const Tensor& b) {
  EXPECT_TRUE(torch::equal(a, b)) << name;
}

Tensor on_gpu(const Tensor& x, torch::ScalarType type) {
  return x.detach().to(torch::kCUDA, type).clone().requires_grad_(x.requires_grad());
}
Tensor rounded(const Tensor& x, torch::ScalarType type) { return x.to(type).to(torch::kFloat64); }

// Inputs of conv_module in float64, rounded to values that `type` (or fp32, for parameters) represents
// exactly.
struct Conv {
  Tensor z, lengths, weight, upstream;
  BatchNorm norm;
  bool training = true;

  Conv(torch::ScalarType type, std::int64_t batch, std::int64_t frames, std::int64_t channels,
       std::int64_t width = 9) {
    const auto wide = torch::kFloat64;
    z = rounded(torch::randn({batch, frames, 2 * channels}, wide), type).requires_grad_();
    lengths = torch::randint(0, frames + 1, {batch}, torch::kInt64);
    lengths[0] = frames;
    weight = rounded(torch::randn({channels, 1, width}, wide) * 0.4, torch::kFloat32).requires_grad_();
    upstream = rounded(torch::randn({batch, frames, channels}, wide), type);
    norm.weight = rounded(torch::randn({channels}, wide) * 0.2 + 1.0, torch::kFloat32).requires_grad_();
    norm.bias = rounded(torch::randn({channels}, wide) * 0.3, torch::kFloat32).requires_grad_();
    norm.running_mean = rounded(torch::randn({channels}, wide), torch::kFloat32);
    norm.running_var = rounded(torch::rand({channels}, wide) + 0.5, torch::kFloat32);
    norm.num_batches_tracked = torch::tensor(6, torch::kInt64);
  }
  [[nodiscard]] Conv gpu(torch::ScalarType type) const {
    Conv out = *this;
    out.z = on_gpu(z, type);
    out.upstream = on_gpu(upstream, type);
    out.lengths = lengths.cuda();
    for (Tensor* t :
         {&out.weight, &out.norm.weight, &out.norm.bias, &out.norm.running_mean, &out.norm.running_var})
      *t = on_gpu(*t, torch::kFloat32);
    out.norm.num_batches_tracked = norm.num_batches_tracked.cuda();
    return out;
  }
  // y is stored in the activations' type, and normalization amplifies its rounding error if a channel's mean
  // exceeds its standard deviation.
  [[nodiscard]] double amplification() const {
    const torch::NoGradGuard no_grad;
    const Tensor mask = torch::arange(z.size(1)).unsqueeze(0) < lengths.unsqueeze(1);
    const Tensor gated = torch::glu(z, 2) * mask.unsqueeze(2);
    const Tensor y = torch::conv1d(gated.mT(), weight, {}, 1, weight.size(2) / 2, 1, weight.size(0));
    const Tensor mean = y.mean(torch::IntArrayRef{0, 2}), var = y.var(torch::IntArrayRef{0, 2}, false);
    return 1.0 + (mean.abs() / (var + norm.eps).sqrt()).max().item<double>();
  }
  // Returns the output, the gradients and the buffers.
  Tensors run() {
    const Tensor out = conv_module(z, lengths, weight, norm, training);
    out.backward(upstream);
    return {out.detach(),     z.grad(),          weight.grad(),    norm.weight.grad(),
            norm.bias.grad(), norm.running_mean, norm.running_var, norm.num_batches_tracked};
  }
};
const std::vector<std::string> kConvNames = {"out",        "dz",           "dweight",     "dnorm.weight",
                                             "dnorm.bias", "running_mean", "running_var", "batches"};

void expect_plain_conv(torch::ScalarType type, std::int64_t batch, std::int64_t frames,
                       std::int64_t channels) {
  for (const char* mode : {"training", "frozen", "evaluating"}) {
    Conv plain(type, batch, frames, channels);
    plain.training = mode != std::string("evaluating");
    plain.norm.frozen = mode == std::string("frozen");
    const double bound = unit(type) * plain.amplification();
    const Tensors got = plain.gpu(type).run(), want = plain.run();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::string name = kConvNames[i] + ' ' + mode + ' ' + std::to_string(channels);
      expect_near(name, got[i], want[i].to(torch::kFloat64), bound);
    }
  }
}

TEST_F(NnCuda, SmallConvModulesEqualThePlainComposition) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) expect_plain_conv(type, 2, 20, 16);
}

TEST_F(NnCuda, ConvModuleEqualsThePlainComposition) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    expect_plain_conv(type, 2, 3, 8);
    expect_plain_conv(type, 3, 70, 72);
    expect_plain_conv(type, 4, 250, 1024);
  }
}

TEST_F(NnCuda, ConvModuleStatisticsOfMeansFarFromZero) {
  Conv plain(torch::kFloat32, 3, 150, 64);
  torch::NoGradGuard no_grad;
  plain.lengths.fill_(150);
  plain.weight.slice(2, 0, 4).zero_();
  plain.weight.slice(2, 5, 9).zero_();
  plain.z.slice(2, 0, 64).add_(4000.0);
  plain.z.slice(2, 64, 128).fill_(3.0);
  plain.z.copy_(rounded(plain.z, torch::kFloat32));
  plain.norm.momentum = 1.0;
  Conv gpu = plain.gpu(torch::kFloat32);
  conv_module(gpu.z, gpu.lengths, gpu.weight, gpu.norm, true);
  conv_module(plain.z, plain.lengths, plain.weight, plain.norm, true);
  // y itself is rounded to fp32: 2^-24 of 4000, with a standard deviation of 1, is 2.4e-4 per element.
  expect_near("mean", gpu.norm.running_mean, plain.norm.running_mean, 1e-6);
  expect_near("variance", gpu.norm.running_var, plain.norm.running_var, 1e-4);
}

TEST_F(NnCuda, ConvModuleHasTheSameBitsAgain) {
  const Conv plain(torch::kBFloat16, 5, 130, 200);
  const Tensors first = plain.gpu(torch::kBFloat16).run(), second = plain.gpu(torch::kBFloat16).run();
  for (std::size_t i = 0; i < first.size(); ++i) expect_same(kConvNames[i], first[i], second[i]);
}

TEST_F(NnCuda, ConvModuleTakesWhatTheKernelsDoNot) {
  for (const auto& [channels, width] : {std::pair<std::int64_t, std::int64_t>{12, 9}, {16, 5}}) {
    Conv plain(torch::kFloat32, 2, 20, channels, width);
    const Tensors got = plain.gpu(torch::kFloat32).run(), want = plain.run();
    for (std::size_t i = 0; i < got.size(); ++i)
      expect_near(kConvNames[i], got[i], want[i].to(torch::kFloat64), unit(torch::kFloat32));
  }
}

TEST_F(NnCuda, ConvModuleComputedAgainUpdatesItsStatisticsOnce) {
  const Conv plain(torch::kBFloat16, 3, 70, 64);
  Conv kept = plain.gpu(torch::kBFloat16), again = plain.gpu(torch::kBFloat16);
  const Tensors want = kept.run();
  const Tensor out = recompute(
      [&](const Tensors& inputs) {
        return conv_module(inputs[0], again.lengths, again.weight, again.norm, true);
      },
      {again.z}, {again.norm.running_mean, again.norm.running_var, again.norm.num_batches_tracked});
  out.backward(again.upstream);
  const Tensors got = {out.detach(),           again.z.grad(),
                       again.weight.grad(),    again.norm.weight.grad(),
                       again.norm.bias.grad(), again.norm.running_mean,
                       again.norm.running_var, again.norm.num_batches_tracked};
  for (std::size_t i = 0; i < got.size(); ++i) expect_same(kConvNames[i], got[i], want[i]);
}

const Tensor kSamples = torch::tensor({9, 4, 1000}, torch::kInt64);
constexpr std::uint32_t kLayer = 6;

struct Norm {
  Tensor x, y, weight, bias, upstream_s, upstream_n;
  DropoutKey pass{5, 6, kSamples};
  double probability = 0.1;

  Norm(torch::ScalarType type, std::int64_t frames, std::int64_t channels) {
    const auto make = [&](double mean) {
      return rounded(torch::randn({3, frames, channels}, torch::kFloat64) + mean, type);
    };
    x = make(0.7).requires_grad_();
    y = make(0.0).requires_grad_();
    upstream_s = make(0.0);
    upstream_n = make(0.0);
    weight = rounded(torch::randn({channels}, torch::kFloat64) + 1.0, torch::kFloat32).requires_grad_();
    bias = rounded(torch::randn({channels}, torch::kFloat64), torch::kFloat32).requires_grad_();
  }
  [[nodiscard]] Norm gpu(torch::ScalarType type) const {
    Norm out = *this;
    for (Tensor* t : {&out.x, &out.y, &out.upstream_s, &out.upstream_n}) *t = on_gpu(*t, type);
    for (Tensor* t : {&out.weight, &out.bias}) *t = on_gpu(*t, torch::kFloat32);
    out.pass.samples = kSamples.cuda();
    return out;
  }
  // Bit 0 of `used`: the sum has a gradient. Bit 1: the norm has a gradient.
  Tensors run(int used) {
    const auto [s, n] = add_norm(x, y, 0.5, weight, bias, 1e-5, {probability, true, pass, kLayer});
    Tensor loss = torch::zeros({}, s.options());
    if ((used & 1) != 0) loss = loss + (s * upstream_s).sum();
    if ((used & 2) != 0) loss = loss + (n * upstream_n).sum();
    loss.backward();
    const auto grad = [](const Tensor& t) {
      return t.grad().defined() ? t.grad() : torch::zeros_like(t).detach();
    };
    return {s.detach(), n.detach(), grad(x), grad(y), grad(weight), grad(bias)};
  }
};
const std::vector<std::string> kNormNames = {"s", "norm", "dx", "dy", "dweight", "dbias"};

void expect_plain_norm(torch::ScalarType type, std::int64_t frames, std::int64_t channels) {
  for (const int used : {1, 2, 3}) {
    Norm plain(type, frames, channels);
    plain.probability = used == 3 ? 0.1 : 0.0;
    const Tensors got = plain.gpu(type).run(used), want = plain.run(used);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::string name = kNormNames[i] + ' ' + std::to_string(channels) + ' ' + std::to_string(used);
      expect_near(name, got[i], want[i], 2 * unit(type));
    }
  }
}

TEST_F(NnCuda, SmallNormsEqualThePlainComposition) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) expect_plain_norm(type, 5, 264);
}

TEST_F(NnCuda, AddNormEqualsThePlainComposition) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const std::int64_t channels : {8, 264, 512, 1000, 1024, 1032}) expect_plain_norm(type, 67, channels);
  }
}

TEST_F(NnCuda, AddNormDropsWhatDropoutDrops) {
  Norm gpu = Norm(torch::kFloat32, 67, 264).gpu(torch::kFloat32);
  gpu.x = torch::zeros_like(gpu.x).detach().requires_grad_();
  gpu.probability = 0.3;
  const Tensor want = dropout(gpu.y.detach(), 0.3, true, gpu.pass, kLayer) * 0.5;
  expect_same("s", gpu.run(3)[0], want);
  expect_same("the gradient's mask", gpu.y.grad() != 0, want != 0);
}

TEST_F(NnCuda, AddNormHasTheSameBitsAgain) {
  const Norm plain(torch::kBFloat16, 700, 1024);
  const Tensors first = plain.gpu(torch::kBFloat16).run(3), second = plain.gpu(torch::kBFloat16).run(3);
  for (std::size_t i = 0; i < first.size(); ++i) expect_same(kNormNames[i], first[i], second[i]);
}

TEST_F(NnCuda, LayerNormEqualsThePlainComposition) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const std::int64_t channels : {8, 1024}) {
      Norm plain(type, 31, channels), gpu = plain.gpu(type);
      const Tensor want = layer_norm(plain.x, plain.weight, plain.bias, 1e-5);
      const Tensor got = layer_norm(gpu.x, gpu.weight, gpu.bias, 1e-5);
      EXPECT_EQ(got.scalar_type(), type);
      want.backward(plain.upstream_n);
      got.backward(gpu.upstream_n);
      expect_near("norm", got, want, unit(type));
      expect_near("dx", gpu.x.grad(), plain.x.grad(), unit(type));
      expect_near("dweight", gpu.weight.grad(), plain.weight.grad(), unit(type));
      expect_near("dbias", gpu.bias.grad(), plain.bias.grad(), unit(type));
    }
  }
}

TEST_F(NnCuda, SmallSiluDropoutsEqualThePlainComposition) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const std::int64_t channels : {8, 512, 1000}) {
      for (const double probability : {0.0, 0.3}) {
        Norm plain(type, 10, channels), gpu = plain.gpu(type);
        const Tensor want = silu_dropout(plain.x, {probability, true, plain.pass, kLayer});
        const Tensor got = silu_dropout(gpu.x, {probability, true, gpu.pass, kLayer});
        want.backward(plain.upstream_n);
        got.backward(gpu.upstream_n);
        expect_near("silu", got, want, unit(type));
        expect_near("dx", gpu.x.grad(), plain.x.grad(), unit(type));
        expect_same("mask", (got != 0).cpu(), want != 0);
      }
    }
  }
}

TEST_F(NnCuda, ASecondGradientIsRefused) {
  Norm gpu = Norm(torch::kFloat32, 4, 8).gpu(torch::kFloat32);
  const Tensor out = silu_dropout(gpu.x, {0.0, false, gpu.pass, kLayer});
  EXPECT_THROW(torch::autograd::grad({out.sum()}, {gpu.x}, {}, true, true), c10::Error);
}

}  // namespace
}  // namespace octavo_train
