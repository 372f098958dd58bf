// Tests gradients of several micro-batches, which are summed in fp32, and loss scaling.
// SPDX-License-Identifier: MIT
#include "train/optim/precision.h"

#include "tests/train/parts_support.h"
#include "train/optim/gradients.h"
#include "train/tasks/text/bdh.h"
#include "train/tasks/text/evaluate.h"

#include <cmath>

namespace octavo_train {
namespace {

// Runs a backward pass that gives every element of `param` the gradient `value`.
void pass(const torch::Tensor& param, double value) {
  (param * torch::full({}, value, param.options().requires_grad(false))).sum().backward();
}

TEST(GradientSums, OfBf16WeightsAreFp32) {
  const NamedTensors params = {{"w", torch::zeros({3}, torch::kBFloat16).requires_grad_()}};
  const torch::Tensor& w = params[0].second;
  // 1 + 2^-9 rounds to 1 in bf16, any number of times; in fp32 every sum is exact.
  pass(w, 1.0);
  for (int i = 0; i < 255; ++i) pass(w, 0x1p-9);
  ASSERT_EQ(w.grad()[0].item<float>(), 1.0F) << "what torch's own accumulation gives";
  GradientSums sums(params, 256);
  for (int step = 0; step < 2; ++step) {  // the second step starts from zero
    sums.clear();
    EXPECT_FALSE(w.grad().defined());
    for (int i = 0; i < 256; ++i) {
      EXPECT_FALSE(w.grad().defined()) << "torch would add to it";
      pass(w, i == 100 ? 1.0 : 0x1p-9);
      sums.micro_batch_done();
    }
    sums.finish();
    ASSERT_EQ(w.grad().scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::equal(w.grad(), torch::full({3}, 1.0 + 255 * 0x1p-9)));
  }
  EXPECT_EQ(sums.bytes(), 3 * (2 + 4));
}

TEST(GradientSums, ParametersWithoutAGradientInSomePasses) {
  for (const auto type : {torch::kBFloat16, torch::kFloat32}) {
    NamedTensors params;
    for (const char* name : {"always", "first", "last", "never"})
      params.emplace_back(name, torch::zeros({2}, type).requires_grad_());
    GradientSums sums(params, 3);
    for (int step = 1; step <= 2; ++step) {
      sums.clear();
      for (int i = 0; i < 3; ++i) {
        pass(params[0].second, step);
        if (i == 0) pass(params[1].second, 8 * step);
        if (i == 2) pass(params[2].second, 16 * step);
        sums.micro_batch_done();
      }
      sums.finish();
      const auto grad = [&](int i) { return params[static_cast<std::size_t>(i)].second.grad(); };
      EXPECT_EQ(grad(0)[1].item<float>(), 3.0F * static_cast<float>(step));
      EXPECT_EQ(grad(1)[1].item<float>(), 8.0F * static_cast<float>(step));
      EXPECT_EQ(grad(2)[1].item<float>(), 16.0F * static_cast<float>(step));
      EXPECT_FALSE(grad(3).defined());
      EXPECT_EQ(grad(0).scalar_type(), torch::kFloat32);
    }
    sums.clear();
    for (const auto& [name, param] : params) EXPECT_FALSE(param.grad().defined()) << name;
  }
}

TEST(GradientSums, ASinglePassKeepsTorchsGradients) {
  const NamedTensors params = {{"w", torch::zeros({3}, torch::kBFloat16).requires_grad_()}};
  GradientSums sums(params, 1);
  sums.clear();
  pass(params[0].second, 2.0);
  sums.micro_batch_done();
  sums.finish();
  EXPECT_EQ(params[0].second.grad().scalar_type(), torch::kBFloat16);
  EXPECT_EQ(sums.bytes(), 3 * 2);
}

TEST(GradientSums, OfSeveralPassesAreTheGradientOfTheLargeBatch) {
  torch::manual_seed(1);
  BdhImpl model(BdhConfig{2, 16, 2, 8, kByteVocabulary, 0.0});
  NamedTensors params;
  for (const auto& each : model.named_parameters()) params.emplace_back(each.key(), each.value());
  const torch::Tensor tokens = torch::randint(256, {4, 13});
  const auto batch = [&](int from, int to) {
    const torch::Tensor rows = tokens.slice(0, from, to);
    return TokenBatch{rows.slice(1, 0, 12), rows.slice(1, 1)};
  };
  text_loss(model, batch(0, 4)).backward();
  std::vector<torch::Tensor> whole;
  for (const auto& [name, param] : params) whole.push_back(param.grad().clone());
  GradientSums sums(params, 4);
  sums.clear();
  for (int row = 0; row < 4; ++row) {
    (text_loss(model, batch(row, row + 1)) / 4.0).backward();
    sums.micro_batch_done();
  }
  sums.finish();
  // The same fp32 terms are added in another order. The longest sums are over the neurons of all heads and
  // over the positions of all rows. Errors of 2^-24 each add up as the root of their sum of squares, in every
  // layer, times 8 for the norms.
  const double near = 8 * 2 * std::sqrt(16 * 8 + 4 * 12) * 0x1p-24;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const torch::Tensor error = params[i].second.grad() - whole[i];
    EXPECT_LE(error.norm().item<double>(), near * whole[i].norm().item<double>()) << params[i].first;
    EXPECT_GT(whole[i].norm().item<double>(), 0.0) << params[i].first;
  }
}

double scale_of(const LossScaler& scaler) { return scaler.scale().item<double>(); }

TEST(LossScaler, HalvesAtASkippedStepAndDoublesAfter2000GoodOnes) {
  const torch::Tensor good = torch::zeros({}, torch::kUInt8), bad = torch::ones({}, torch::kUInt8);
  LossScaler scaler(torch::kCPU, ComputeType::float16);
  EXPECT_EQ(scale_of(scaler), 65536.0);
  EXPECT_EQ(scaler.scaled(torch::tensor(0.5F)).item<float>(), 32768.0F);
  for (int i = 0; i < 1500; ++i) scaler.update(good);
  scaler.update(bad);
  EXPECT_EQ(scale_of(scaler), 32768.0);
  for (int i = 0; i < 1999; ++i) scaler.update(good);  // the count started again
  EXPECT_EQ(scale_of(scaler), 32768.0);

  nlohmann::ordered_json numbers;
  scaler.save(numbers);
  LossScaler loaded(torch::kCPU, ComputeType::float16);
  loaded.load(nlohmann::ordered_json::parse(numbers.dump()));
  for (LossScaler* each : {&scaler, &loaded}) {
    each->update(good);
    EXPECT_EQ(scale_of(*each), 65536.0);
    for (int i = 0; i < 2000; ++i) each->update(good);
    EXPECT_EQ(scale_of(*each), 131072.0);
  }
}

TEST(LossScaler, DoesNothingForOtherDtypes) {
  for (const ComputeType dtype : {ComputeType::float32, ComputeType::bfloat16}) {
    LossScaler scaler(torch::kCPU, dtype);
    EXPECT_FALSE(scaler.active());
    EXPECT_FALSE(scaler.scale().defined());
    const torch::Tensor loss = torch::tensor(3.0F);
    EXPECT_TRUE(scaler.scaled(loss).is_same(loss));
    scaler.update(torch::ones({}, torch::kUInt8));
    scaler.load({{"scale", 4.0}, {"good_steps", 1}});
    nlohmann::ordered_json numbers = nlohmann::ordered_json::object();
    scaler.save(numbers);
    EXPECT_TRUE(numbers.empty());
  }
}

TEST(LossScaler, AStepWhoseGradientsOverflowIsLeftOut) {
  const TrainingSettings t = training({"optimizer=adamw", "fp16=true", "learning_rate=0.01"});
  torch::manual_seed(3);
  BdhImpl model(BdhConfig{1, 16, 2, 8, kByteVocabulary, 0.0});
  NamedTensors params;
  for (const auto& each : model.named_parameters()) params.emplace_back(each.key(), each.value());
  const torch::Tensor tokens = torch::randint(256, {2, 13});
  GradientSums sums(params, 1);
  LossScaler scaler(torch::kCPU, t.compute_dtype);
  const auto optimizer = make(t, params);
  const auto step = [&] {
    sums.clear();
    torch::Tensor loss;
    {
      const AutocastScope autocast(torch::kCPU, t.compute_dtype);
      loss = text_loss(model, {tokens.slice(1, 0, 12), tokens.slice(1, 1)});
    }
    scaler.scaled(loss).backward();
    sums.micro_batch_done();
    sums.finish();
    optimizer->set_loss_scale(scaler.scale());
    optimizer->step();
    scaler.update(optimizer->skipped());
    return optimizer->skipped().item<int>();
  };
  EXPECT_EQ(step(), 0);
  EXPECT_EQ(scale_of(scaler), 65536.0);
  const NamedTensors before = copies(params);
  const Saved states = saved(*optimizer);
  scaler.load({{"scale", 0x1p100}, {"good_steps", 7}});
  EXPECT_NE(step(), 0);
  EXPECT_TRUE(same_bits(params, before));
  EXPECT_TRUE(saved(*optimizer) == states);
  EXPECT_EQ(scale_of(scaler), 0x1p99);
  scaler.load({{"scale", 1024.0}, {"good_steps", 0}});
  EXPECT_EQ(step(), 0);
  EXPECT_FALSE(same_bits(params, before));
}

}  // namespace
}  // namespace octavo_train
