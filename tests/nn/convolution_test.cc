// Tests the plain compositions of train/nn/convolution.h and train/nn/residual.h against loops over elements.
// SPDX-License-Identifier: MIT
#include "train/nn/convolution.h"
#include "train/nn/residual.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cmath>

namespace octavo_train {
namespace {

using torch::Tensor;

constexpr auto kWide = torch::kFloat64;

BatchNorm batch_norm(std::int64_t channels) {
  BatchNorm norm;
  norm.weight = torch::randn({channels}, kWide);
  norm.bias = torch::randn({channels}, kWide);
  norm.running_mean = torch::randn({channels}, kWide);
  norm.running_var = torch::rand({channels}, kWide) + 0.5;
  norm.num_batches_tracked = torch::tensor(3, torch::kInt64);
  return norm;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Computes depthwise(mask(GLU z)) element by element.
Tensor mixed(const Tensor& z, const Tensor& lengths, const Tensor& weight) {
  const std::int64_t frames = z.size(1), channels = weight.size(0), width = weight.size(2);
  Tensor out = torch::zeros({z.size(0), frames, channels}, kWide);
  const auto in = z.accessor<double, 3>(), kernel = weight.accessor<double, 3>();
  const auto ends = lengths.accessor<std::int64_t, 1>();
  auto to = out.accessor<double, 3>();
  for (std::int64_t b = 0; b < z.size(0); ++b) {
    for (std::int64_t t = 0; t < frames; ++t) {
      for (std::int64_t k = 0; k < width; ++k) {
        const std::int64_t from = t + k - width / 2;
        if (from < 0 || from >= ends[b]) continue;
        for (std::int64_t c = 0; c < channels; ++c)
          to[b][t][c] += kernel[c][0][k] * in[b][from][c] * sigmoid(in[b][from][channels + c]);
      }
    }
  }
  return out;
}

Tensor normed(const Tensor& y, const BatchNorm& norm, const Tensor& mean, const Tensor& var) {
  const Tensor n = (y - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias;
  return n * n.sigmoid();
}

TEST(TrainConvModule, EqualsLoopsOverElements) {
  torch::manual_seed(2);
  const Tensor z = torch::randn({3, 11, 8}, kWide), weight = torch::randn({4, 1, 5}, kWide);
  const Tensor lengths = torch::tensor({11, 4, 0}, torch::kInt64);
  const Tensor y = mixed(z, lengths, weight), flat = y.reshape({33, 4});
  const BatchNorm before = batch_norm(4);
  const auto run = [&](bool training, bool frozen) {
    BatchNorm norm = before;
    for (Tensor* t : {&norm.running_mean, &norm.running_var, &norm.num_batches_tracked}) *t = t->clone();
    norm.frozen = frozen;
    return std::pair(conv_module(z, lengths, weight, norm, training), norm);
  };
  // The statistics include all positions, even those beyond the lengths.
  const auto [out, norm] = run(true, false);
  EXPECT_TRUE(torch::allclose(out, normed(y, before, flat.mean(0), flat.var(0, false)), 1e-10, 1e-12));
  EXPECT_TRUE(torch::allclose(norm.running_mean, 0.9 * before.running_mean + 0.1 * flat.mean(0), 1e-10));
  EXPECT_TRUE(torch::allclose(norm.running_var, 0.9 * before.running_var + 0.1 * flat.var(0, true), 1e-10));
  EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 4);
  const Tensor known = normed(y, before, before.running_mean, before.running_var);
  for (const bool training : {false, true}) {
    const auto [still, same] = run(training, training);
    EXPECT_TRUE(torch::allclose(still, known, 1e-10, 1e-12)) << training;
    EXPECT_TRUE(torch::equal(same.running_mean, before.running_mean)) << training;
    EXPECT_TRUE(torch::equal(same.running_var, before.running_var)) << training;
    EXPECT_EQ(same.num_batches_tracked.item<std::int64_t>(), 3) << training;
  }
}

TEST(TrainAddNorm, IsTheSumAndItsLayerNorm) {
  torch::manual_seed(2);
  const Tensor x = torch::randn({2, 5, 12}, kWide), y = torch::randn({2, 5, 12}, kWide);
  const Tensor weight = torch::randn({12}, kWide), bias = torch::randn({12}, kWide);
  const DropoutKey pass{3, 4, torch::tensor({8, 1}, torch::kInt64)};
  const auto [s, n] = add_norm(x, y, 0.5, weight, bias, 1e-5, {0.3, true, pass, 7});
  const Tensor sum = x + 0.5 * dropout(y, 0.3, true, pass, 7);
  EXPECT_TRUE(torch::allclose(s, sum, 1e-12));
  const Tensor mean = sum.mean(-1, true), var = (sum - mean).pow(2).mean(-1, true);
  EXPECT_TRUE(torch::allclose(n, (sum - mean) / (var + 1e-5).sqrt() * weight + bias, 1e-10));
  EXPECT_TRUE(torch::equal(layer_norm(s, weight, bias, 1e-5), n));
  const Tensor silu = silu_dropout(x, {0.3, true, pass, 7});
  EXPECT_TRUE(torch::allclose(silu, dropout(x * x.sigmoid(), 0.3, true, pass, 7), 1e-10, 1e-12));
}

TEST(TrainAddNorm, WeightsMayBeWiderThanActivations) {
  const Tensor x = torch::randn({2, 5, 16}), weight = torch::randn({16}), bias = torch::randn({16});
  const Tensor narrow = x.to(torch::kBFloat16);
  const DropoutKey none;
  const auto [s, n] = add_norm(narrow, narrow, 1.0, weight, bias, 1e-5, {0.0, true, none, 0});
  EXPECT_EQ(s.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(n.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::allclose(
      n.to(torch::kFloat32), layer_norm(narrow.to(torch::kFloat32) * 2.0, weight, bias, 1e-5), 0x1p-8, 1e-6));
}

}  // namespace
}  // namespace octavo_train
