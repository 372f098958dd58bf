// Tests BDH in other precisions: gradients against finite differences in float64, bf16 logits against fp32,
// and checkpointed layers bit by bit.
// SPDX-License-Identifier: MIT
#include "tests/train/parts_support.h"
#include "train/optim/precision.h"
#include "train/tasks/text/bdh.h"

#include <cmath>

namespace octavo_train {
namespace {

// Draws weights far from zero, because with a fresh model's weights the attention hardly matters.
void draw_weights(BdhImpl& model, double deviation) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& param : model.parameters()) param.normal_(0.0, deviation);
}

// The rotation and the matmuls of codes with themselves have their own backward passes.
TEST(BdhPrecision, GradientsAreDifferencesInFloat64) {
  torch::manual_seed(11);
  BdhImpl model(BdhConfig{2, 8, 2, 8, 16, 0.0});
  model.to(torch::kFloat64);
  draw_weights(model, 0.4);
  const torch::Tensor tokens = torch::randint(16, {2, 7});
  const torch::Tensor mix = torch::randn({2, 7, 16}, torch::kFloat64);
  const auto loss = [&] { return (model.forward(tokens) * mix).sum(); };
  ASSERT_EQ(loss().scalar_type(), torch::kFloat64);
  loss().backward();

  const torch::NoGradGuard no_grad;
  constexpr double kStepSize = 1e-6;
  const double value = std::abs(loss().item<double>());
  for (const auto& each : model.named_parameters()) {
    torch::Tensor param = each.value();
    const torch::Tensor grad = param.grad();
    const double scale = grad.abs().max().item<double>();
    ASSERT_GT(scale, 1e-2) << each.key();
    const auto difference = [&](const torch::Tensor& direction) {
      const torch::Tensor kept = param.clone();
      param.copy_(kept + kStepSize * direction);
      const double up = loss().item<double>();
      param.copy_(kept - kStepSize * direction);
      const double down = loss().item<double>();
      param.copy_(kept);
      return (up - down) / (2 * kStepSize);
    };
    // The bound covers a few hundred roundings of the losses by 2^-53, and the omitted third derivative.
    const double near = 1e3 * 0x1p-53 * (value + 1) / kStepSize + 1e4 * kStepSize * kStepSize * scale;
    ASSERT_LT(near, 1e-5 * scale) << each.key();
    const std::int64_t stride = std::max<std::int64_t>(1, param.numel() / 50);
    for (std::int64_t i = 0; i < param.numel(); i += stride) {
      torch::Tensor one = torch::zeros_like(param);
      one.view(-1)[i] = 1.0;
      EXPECT_NEAR(difference(one), grad.flatten()[i].item<double>(), near) << each.key() << " " << i;
    }
    const torch::Tensor all = torch::randn_like(param) / std::sqrt(param.numel());
    EXPECT_NEAR(difference(all), (grad * all).sum().item<double>(), near) << each.key();
  }
}

TEST(BdhPrecision, Bf16LogitsAreNearThoseOfFp32) {
  for (const bool bf16_weights : {false, true}) {
    torch::manual_seed(12);
    const BdhConfig config{3, 64, 4, 16, kByteVocabulary, 0.0};
    BdhImpl model(config), exact(config);
    {  // the same weights, which bf16 represents exactly
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < model.parameters().size(); ++i) {
        torch::Tensor from = model.parameters()[i], to = exact.parameters()[i];
        from.copy_(from.to(torch::kBFloat16));
        to.copy_(from);
      }
    }
    if (bf16_weights) model.to(torch::kBFloat16);
    const torch::Tensor tokens = torch::randint(256, {2, 48});
    const torch::NoGradGuard no_grad;
    torch::Tensor logits;
    {
      const AutocastScope autocast(torch::kCPU, ComputeType::bfloat16);
      logits = model.forward(tokens).to(torch::kFloat32);
    }
    const torch::Tensor expected = exact.forward(tokens);
    // Counts the roundings to bf16 (half an ulp: 2^-9 to 2^-8 of the value) in a layer: its input and code 2,
    // the rotation 3 with its cosines, both factors of the scores and the scores 2 * 5 + 1, the attention's
    // output 1, its norm and the result 2, their product 1, the decoder's result, its sum and two norms 4.
    // These are 24 in all, and 2 for the logits. They are independent, so the errors add up as the root of
    // their sum of squares.
    const double bound = 0x1p-8 * std::sqrt(24.0 * static_cast<double>(config.n_layer) + 2);
    const double error = ((logits - expected).norm() / expected.norm()).item<double>();
    EXPECT_LT(error, bound);
    EXPECT_GT(error, 0x1p-12) << "computed in fp32?";
  }
}

TEST(BdhPrecision, CheckpointingGivesTheSameBits) {
  for (const ComputeType dtype : {ComputeType::float32, ComputeType::bfloat16}) {
    std::vector<NamedTensors> results;
    for (const bool checkpointed : {false, true}) {
      torch::manual_seed(13);
      BdhImpl model(BdhConfig{3, 32, 4, 8, kByteVocabulary, 0.2, checkpointed});
      if (dtype == ComputeType::bfloat16) model.to(torch::kBFloat16);
      const torch::Tensor tokens = torch::randint(256, {2, 24});
      torch::Tensor logits;
      {
        const AutocastScope autocast(torch::kCPU, dtype);
        logits = model.forward(tokens, {13, 1, torch::tensor({5, 6}, torch::kInt64)});
      }
      logits.to(torch::kFloat32).square().mean().backward();  // outside of autocast, as in the training loop
      NamedTensors& all = results.emplace_back();
      all.emplace_back("logits", logits.detach());
      all.emplace_back("random", torch::rand({4}));
      for (const auto& each : model.named_parameters()) all.emplace_back(each.key(), each.value().grad());
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(same_bits(results[0][i].second, results[1][i].second)) << results[0][i].first;
    EXPECT_EQ(results[0].size(), 7U);
  }
}

}  // namespace
}  // namespace octavo_train
