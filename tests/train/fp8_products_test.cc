// Tests FP8 matmuls through the functions of train/nn/weight_matmul.h: which matmuls are in FP8 and which
// stay plain, recomputed segments bit by bit, BDH with FP8, and the saved FP8 state.
// SPDX-License-Identifier: MIT
#include "tests/train/fp8_reference.h"
#include "tests/train/parts_support.h"
#include "train/model/model.h"
#include "train/nn/recompute.h"
#include "train/nn/weight_matmul.h"
#include "train/optim/fp8.h"
#include "train/tasks/text/bdh.h"

#include <cstdlib>
#include <map>
#include <thread>

namespace octavo_train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

Fp8Settings with_history(std::int64_t length = 4) {
  Fp8Settings out;
  out.enabled = true;
  out.recipe.amax_history_len = length;
  return out;
}

std::map<std::string, Tensor> saved(const Fp8& fp8) {
  NamedTensors tensors;
  nlohmann::ordered_json numbers;
  fp8.save(tensors, numbers);
  return {tensors.begin(), tensors.end()};
}

Tensor not_skipped() { return torch::zeros({}, torch::kUInt8); }

// Two layers: one with weights [in, out], one with [out, in].
struct Layers {
  Tensor first, second, x;

  Layers() {
    torch::manual_seed(3);
    first = (0.2 * torch::randn({32, 64})).requires_grad_();
    second = (0.2 * torch::randn({32, 64})).requires_grad_();
    x = torch::randn({2, 11, 32}).requires_grad_();
  }
  [[nodiscard]] NamedTensors parameters() const { return {{"first", first}, {"second", second}}; }
  [[nodiscard]] Tensor operator()(const Tensor& in) const {
    return in + weight_matmul(weight_matmul(in, first).relu_(), second.t());
  }
  // Returns the gradients and clears them.
  [[nodiscard]] std::vector<Tensor> grads() {
    std::vector<Tensor> out;
    for (Tensor* tensor : {&x, &first, &second}) {
      out.push_back(tensor->grad().clone());
      tensor->mutable_grad().reset();
    }
    return out;
  }
};

TEST(Fp8Products, TheDoorUsesTheScope) {
  const Fp8Reference on;
  const Layers layers;
  const Fp8 fp8(with_history(), layers.parameters());
  ASSERT_TRUE(fp8.active());
  const Tensor plain = layers.x.matmul(layers.first);
  {
    const MatmulPrecisionScope scope = fp8.scope();
    const Tensor y = weight_matmul(layers.x, layers.first);
    EXPECT_FALSE(torch::equal(y, plain));
    EXPECT_TRUE(torch::allclose(y, plain, 0.1, 0.3));
    const MatmulPrecisionScope none(nullptr);
    EXPECT_TRUE(torch::equal(weight_matmul(layers.x, layers.first), plain));
  }
  EXPECT_TRUE(torch::equal(weight_matmul(layers.x, layers.first), plain));
}

TEST(Fp8Products, GroupsWithoutFp8HaveTheBitsOfTorch) {
  torch::manual_seed(4);
  const Tensor x = torch::randn({2, 10, 12}).requires_grad_(), w = torch::randn({3, 12, 8}).requires_grad_();
  const Tensor heads = x.unsqueeze(0).expand({3, 2, 10, 12}).reshape({3, 20, 12});
  const Tensor mix = torch::randn({3, 20, 8});
  const auto grads = [&](const Tensor& y, const Tensor& dy) {
    return torch::autograd::grad({y}, {x, w}, {dy});
  };
  const Tensor y = weight_matmul_to_groups(x.reshape({20, 12}), w);
  EXPECT_TRUE(torch::equal(y, heads.bmm(w)));
  const auto of_door = grads(y, mix), of_torch = grads(heads.bmm(w), mix);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(of_door[i], of_torch[i])) << i;
  EXPECT_TRUE(torch::equal(grouped_weight_matmul_sum(heads, w), heads.bmm(w).sum(0)));
  EXPECT_THAT(
      torch_error([&] { weight_matmul_to_groups(x, w); }),
      HasSubstr(
          "weight_matmul_to_groups: got activations [2, 10, 12] and weights [3, 12, 8], expected [rows"));
  EXPECT_THAT(torch_error([&] { grouped_weight_matmul_sum(x, w); }),
              HasSubstr("grouped_weight_matmul_sum: got activations"));
}

TEST(Fp8Products, GroupsInFp8) {
  const Fp8Reference on;
  torch::manual_seed(4);
  const Tensor x = torch::randn({32, 16}), w = torch::randn({3, 16, 48}).requires_grad_();
  const Fp8 fp8(with_history(), {{"w", w}});
  const MatmulPrecisionScope scope = fp8.scope();
  const Tensor heads = x.expand({3, 32, 16});
  const Tensor y = weight_matmul_to_groups(x, w);
  EXPECT_FALSE(torch::equal(y, heads.bmm(w)));
  EXPECT_TRUE(torch::equal(y, grouped_weight_matmul(heads, w)));
  const Tensor sum = grouped_weight_matmul_sum(heads, w);
  EXPECT_FALSE(torch::equal(sum, heads.bmm(w).sum(0)));
  EXPECT_TRUE(torch::allclose(sum, y.sum(0), 1e-5, 1e-4));
}

TEST(Fp8Products, RecomputedSegmentsHaveTheSameBits) {
  const Fp8Reference on;
  Layers layers;
  std::vector<Tensor> of_kept, of_recomputed;
  std::map<std::string, Tensor> states[2];
  for (const bool again : {false, true}) {
    Fp8 fp8(with_history(), layers.parameters());
    for (int step = 0; step < 3; ++step) {
      Tensor y;
      {
        const MatmulPrecisionScope scope = fp8.scope();
        y = layers.x;
        for (int block = 0; block < 2; ++block)
          y = again ? recompute([&](const std::vector<Tensor>& in) { return layers(in[0]); }, {y})
                    : layers(y);
      }
      // Runs backward() without a scope, and in another thread, as on a GPU.
      std::thread([&] { y.square().sum().backward(); }).join();
      auto grads = layers.grads();
      grads.push_back(y.detach());
      grads.push_back(fp8.amaxes());
      auto& all = again ? of_recomputed : of_kept;
      all.insert(all.end(), grads.begin(), grads.end());
      fp8.step_done(not_skipped());
    }
    states[again ? 1 : 0] = saved(fp8);
  }
  ASSERT_EQ(of_kept.size(), of_recomputed.size());
  for (std::size_t i = 0; i < of_kept.size(); ++i)
    EXPECT_TRUE(torch::equal(of_kept[i], of_recomputed[i])) << i;
  for (const auto& [name, state] : states[0]) EXPECT_TRUE(same_bits(state, states[1].at(name))) << name;
}

TEST(Fp8Products, BdhTrainsWithIt) {
  const Fp8Reference on;
  torch::manual_seed(5);
  BdhConfig config{2, 32, 2, 4, 64, 0.0};
  const torch::Tensor tokens = torch::randint(64, {2, 16});
  std::map<bool, std::map<std::string, Tensor>> grads;
  std::map<bool, Tensor> logits;
  for (const bool recomputed : {false, true}) {
    torch::manual_seed(6);
    config.gradient_checkpointing = recomputed;
    Bdh model(config);
    Fp8 fp8(with_history(), parameters_of(*model));
    const Tensor plain = model->forward(tokens);
    {
      const torch::NoGradGuard no_grad;  // scales that fit the gradients
      const MatmulPrecisionScope scope = fp8.scope();
      EXPECT_FALSE(torch::equal(model->forward(tokens), plain));
    }
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      {
        const MatmulPrecisionScope scope = fp8.scope();
        logits[recomputed] = model->forward(tokens);
      }
      logits[recomputed].square().sum().backward();
      if (step == 0) fp8.step_done(not_skipped());
    }
    const double off = (logits[recomputed] - plain).norm().item<double>() / plain.norm().item<double>();
    EXPECT_GT(off, 1e-4);
    EXPECT_LT(off, 0.1);
    const auto states = saved(fp8);
    for (const auto& each : model->named_parameters()) {
      grads[recomputed][each.key()] = each.value().grad();
      // Every weight of a matmul has amax values of x, w and dy. The embedding is looked up, not multiplied.
      const Tensor maxima = states.at(each.key()).select(1, 2);
      EXPECT_EQ((maxima > 0).all().item<bool>(), each.key() != "embed.weight") << each.key();
    }
    EXPECT_TRUE(fp8.pop_log_lines().empty()) << "no product stays plain";
  }
  EXPECT_TRUE(torch::equal(logits[false], logits[true]));
  for (const auto& [name, grad] : grads[false])
    EXPECT_TRUE(torch::allclose(grad, grads[true].at(name), 1e-5, 1e-6)) << name;
}

TEST(Fp8Products, WhatARunKeeps) {
  const Fp8Reference on;
  Layers layers;
  const auto step = [&](Fp8& fp8, double factor, bool skipped = false) {
    {
      const MatmulPrecisionScope scope = fp8.scope();
      (layers(layers.x * factor) * factor).sum().backward();
    }
    (void)layers.grads();
    fp8.step_done(torch::full({}, skipped ? 1 : 0, torch::kUInt8));
  };
  Fp8 through(with_history(), layers.parameters()), first(with_history(), layers.parameters());
  step(through, 1.0), step(through, 3.0);
  step(first, 1.0);
  NamedTensors tensors;
  nlohmann::ordered_json numbers;
  Fp8Component(first).save(tensors, numbers);
  EXPECT_EQ(tensors.size(), 2U);
  Fp8 second(with_history(), layers.parameters());
  Fp8Component part(second);
  EXPECT_EQ(part.name(), "fp8");
  const auto commit = part.load(tensors, numbers);
  ASSERT_TRUE(commit.ok()) << commit.status().message();
  EXPECT_FALSE(same_bits(saved(second).at("first"), saved(first).at("first"))) << "not before the commit";
  (*commit)();
  EXPECT_TRUE(same_bits(saved(second).at("first"), saved(first).at("first")));
  step(second, 3.0);
  for (const auto& [name, state] : saved(through))
    EXPECT_TRUE(same_bits(saved(second).at(name), state)) << name;
  const auto before = saved(second);
  step(second, 100.0, true);
  for (const auto& [name, state] : saved(second)) EXPECT_TRUE(same_bits(before.at(name), state)) << "skipped";

  Fp8 longer(with_history(8), layers.parameters());
  const auto other = longer.load(tensors, numbers);
  ASSERT_TRUE(other.ok()) << other.status().message();
  (*other)();
  EXPECT_THAT(longer.reset_reason(),
              HasSubstr("other settings (fp8: format hybrid, recipe delayed (history of"));
  EXPECT_EQ(second.reset_reason(), "");
  tensors[0].second = torch::zeros({3, 1});
  const auto refused = second.load(tensors, numbers);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("its FP8 state does not fit"),
                                                HasSubstr("\"first\""), HasSubstr("keep amax_history_len")));

  // Sets amax values as a reduction over ranks does.
  {
    const MatmulPrecisionScope scope = second.scope();
    layers(layers.x).sum().backward();
  }
  const Tensor own = second.amaxes();
  second.set_amaxes(own * 2);
  EXPECT_TRUE(torch::equal(second.amaxes(), own * 2));
}

TEST(Fp8Products, WithoutFp8ADeviceIsRefusedOrPlain) {
  const Layers layers;
  EXPECT_THAT(torch_error([&] { Fp8(with_history(), layers.parameters()); }), HasSubstr("device: got cpu"));
  Fp8Settings settings = with_history();
  settings.fallback = Fp8Fallback::bf16;
  Fp8 fp8(settings, layers.parameters());
  EXPECT_FALSE(fp8.active());
  const auto news = fp8.pop_log_lines();
  ASSERT_EQ(news.size(), 1U);
  EXPECT_THAT(news[0], AllOf(HasSubstr("fp8: "), HasSubstr("got cpu"), HasSubstr("stay plain")));
  const MatmulPrecisionScope scope = fp8.scope();
  EXPECT_TRUE(torch::equal(weight_matmul(layers.x, layers.first), layers.x.matmul(layers.first)));
  fp8.step_done(not_skipped());
  EXPECT_EQ(fp8.amaxes().numel(), 0);
  NamedTensors tensors;
  nlohmann::ordered_json numbers;
  fp8.save(tensors, numbers);
  const Fp8Reference on;
  Fp8 later(with_history(), layers.parameters());
  EXPECT_TRUE(later.load(tensors, numbers).ok()) << "a run that fell back goes on where there is FP8";
  EXPECT_EQ(later.reset_reason(), "the checkpoint has no FP8 state");
}

}  // namespace
}  // namespace octavo_train
