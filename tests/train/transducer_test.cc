// Tests the transducer loss with its joint network on torch tensors: against a lattice that autograd
// differentiates, as part of a model, and in recomputed segments.
// SPDX-License-Identifier: MIT
#include "train/nn/transducer.h"
#include "train/nn/recompute.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

constexpr std::int64_t kBlank = 4, kHidden = 6;
const std::vector<std::int64_t> kFrames = {5, 3, 1}, kLabels = {3, 0, 2};

TransducerOptions options() {
  TransducerOptions out;
  out.blank = kBlank;
  out.durations = {0, 1, 2};
  out.sigma = 0.05;
  out.tile_cells = 7;
  return out;
}

// A joint network and its inputs; all of them need gradients.
struct Case {
  explicit Case(torch::ScalarType type = torch::kFloat32) {
    torch::manual_seed(3);
    f = torch::randn({3, 5, kHidden}).to(type).requires_grad_();
    g = torch::randn({3, 4, kHidden}).to(type).requires_grad_();
    weight = torch::randn({kBlank + 1 + 3, kHidden}).requires_grad_();
    bias = torch::randn({kBlank + 1 + 3}).requires_grad_();
  }
  [[nodiscard]] Tensor loss(const TransducerOptions& with, const Drop& drop) const {
    return joint_loss(f, g, weight, bias, targets, kFrames, kLabels, with, drop);
  }
  [[nodiscard]] Tensor loss() const { return loss(options(), {0.0, false, {}, 0}); }
  [[nodiscard]] std::vector<Tensor> gradients(const Tensor& of) const {
    return torch::autograd::grad({of}, {f, g, weight, bias});
  }

  Tensor f, g, weight, bias;
  Tensor targets = torch::tensor({{1, 0, 3}, {0, 0, 0}, {2, 2, 0}}, torch::kInt64);
};

// Returns -log P of one clip's logits [frames, labels + 1, outputs], computed by definition.
Tensor lattice(const Tensor& logits, const Tensor& labels, const TransducerOptions& with) {
  const std::int64_t frames = logits.size(0), last = logits.size(1) - 1;
  const Tensor tokens = logits.slice(-1, 0, kBlank + 1).log_softmax(-1) - with.sigma;
  const Tensor lasts = logits.slice(-1, kBlank + 1).log_softmax(-1);
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Tensor>> arriving;
  arriving[{0, 0}] = {torch::zeros({}, logits.options())};
  for (std::int64_t t = 0; t < frames; ++t) {
    for (std::int64_t u = 0; u <= last; ++u) {
      if (!arriving.count({t, u})) continue;
      const Tensor here = torch::logsumexp(torch::stack(arriving[{t, u}]), 0);
      for (std::size_t i = 0; i < with.durations.size(); ++i) {
        const std::int64_t to = t + with.durations[i];
        const Tensor duration = here + lasts[t][u][static_cast<std::int64_t>(i)];
        if (to > t && (to < frames || (to == frames && u == last)))
          arriving[{to, u}].push_back(duration + tokens[t][u][kBlank]);
        if (u < last && to < frames)
          arriving[{to, u + 1}].push_back(duration + tokens[t][u][labels[u].item<std::int64_t>()]);
      }
    }
  }
  return -torch::logsumexp(torch::stack(arriving.at({frames, last})), 0);
}

Tensor plain_loss(const Case& with, const TransducerOptions& how) {
  const Tensor hidden = torch::relu(with.f.unsqueeze(2) + with.g.unsqueeze(1)).to(torch::kFloat64);
  const Tensor logits = torch::matmul(hidden, with.weight.to(torch::kFloat64).t()) + with.bias;
  std::vector<Tensor> losses;
  for (std::size_t b = 0; b < kFrames.size(); ++b) {
    const auto clip = static_cast<std::int64_t>(b);
    losses.push_back(
        lattice(logits[clip].slice(0, 0, kFrames[b]).slice(1, 0, kLabels[b] + 1), with.targets[clip], how));
  }
  return torch::stack(losses).mean();
}

TEST(TrainTransducer, EqualsALatticeOfTorch) {
  const Case with;
  const Tensor loss = with.loss(), expected = plain_loss(with, options());
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
  const auto found = with.gradients(loss * 2), want = with.gradients(expected * 2);
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(torch::allclose(found[i], want[i], 1e-4, 1e-5)) << i;
  TransducerOptions each = options();
  each.reduction = "none";
  const Tensor losses = with.loss(each, {0.0, false, {}, 0});
  EXPECT_EQ(losses.sizes(), torch::IntArrayRef({3}));
  EXPECT_NEAR(losses.mean().item<double>(), loss.item<double>(), 1e-5);
}

TEST(TrainTransducer, KeepsTypesAndFrozenTensors) {
  const Case half(torch::kBFloat16);
  const auto gradients = half.gradients(half.loss());
  EXPECT_EQ(gradients[0].scalar_type(), torch::kBFloat16);
  EXPECT_EQ(gradients[2].scalar_type(), torch::kFloat32);  // the weight's own type
  // A weight in fp32 is rounded for the matmul, but its gradient is not.
  Case rounded(torch::kBFloat16);
  rounded.weight = half.weight.detach().to(torch::kBFloat16).to(torch::kFloat32).requires_grad_();
  EXPECT_TRUE(torch::equal(rounded.loss(), half.loss()));
  EXPECT_TRUE(torch::equal(rounded.gradients(rounded.loss())[2], gradients[2]));
  EXPECT_FALSE(torch::equal(gradients[2], gradients[2].to(torch::kBFloat16).to(torch::kFloat32)));

  Case frozen;
  frozen.weight = frozen.weight.detach();
  frozen.bias = Tensor();
  frozen.loss().backward();
  EXPECT_TRUE(frozen.f.grad().defined());
  EXPECT_FALSE(frozen.weight.grad().defined());

  Case wide(torch::kFloat64);
  EXPECT_NEAR(wide.loss().item<double>(), plain_loss(wide, options()).item<double>(), 1e-5);
  EXPECT_EQ(wide.gradients(wide.loss())[0].scalar_type(), torch::kFloat64);
  const torch::NoGradGuard off;
  EXPECT_FALSE(half.loss().requires_grad());
}

TEST(TrainTransducer, DropoutAndOmegaFollowThePass) {
  const Case with;
  const DropoutKey pass{5, 6, torch::tensor({9, 8, 7}, torch::kInt64)}, next{5, 7, pass.samples};
  TransducerOptions how = options();
  const Tensor loss = with.loss(how, {0.4, true, pass, 2});
  EXPECT_TRUE(torch::equal(with.loss(how, {0.4, true, pass, 2}), loss));
  EXPECT_FALSE(torch::equal(with.loss(how, {0.4, true, next, 2}), loss));
  EXPECT_FALSE(torch::equal(with.loss(how, {0.4, true, pass, 3}), loss));
  EXPECT_TRUE(torch::equal(with.loss(how, {0.4, false, {}, 2}), with.loss()));
  how.omega = 1.0;
  const Tensor plain = with.loss(how, {0.0, true, pass, 2});
  EXPECT_FALSE(torch::equal(plain, with.loss()));
  EXPECT_EQ(with.gradients(plain)[3].slice(0, kBlank + 1).count_nonzero().item<std::int64_t>(), 0);
  EXPECT_TRUE(torch::equal(with.loss(how, {0.0, false, {}, 2}), with.loss()));  // only in training
}

TEST(TrainTransducer, WorksInsideWhatIsComputedAgain) {
  const Case with;
  const DropoutKey pass{5, 6, torch::tensor({9, 8, 7}, torch::kInt64)};
  const auto head = [&](const std::vector<Tensor>& in) {
    return joint_loss(in[0].tanh(), in[1], with.weight, with.bias, with.targets, kFrames, kLabels, options(),
                      {0.3, true, pass, 1});
  };
  head({with.f, with.g}).backward();
  const std::vector<Tensor> expected = {with.f.grad().clone(), with.g.grad().clone(),
                                        with.weight.grad().clone()};
  for (const Tensor& x : {with.f, with.g, with.weight}) x.mutable_grad() = Tensor();
  recompute(head, {with.f, with.g}).backward();
  EXPECT_TRUE(torch::equal(with.f.grad(), expected[0]));
  EXPECT_TRUE(torch::equal(with.g.grad(), expected[1]));
  EXPECT_TRUE(torch::equal(with.weight.grad(), expected[2]));
}

TEST(TrainTransducer, NamesWhatDoesNotFit) {
  const auto message = [](const std::function<void(Case&)>& change, const Drop& drop) -> std::string {
    Case with;
    change(with);
    try {
      (void)with.loss(options(), drop);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  const Drop none{0.0, false, {}, 0};
  EXPECT_THAT(message([](Case& c) { c.g = c.g.slice(2, 1); }, none),
              HasSubstr("expected [batch, frames, hidden]"));
  EXPECT_THAT(message([](Case& c) { c.bias = c.bias.slice(0, 1); }, none),
              HasSubstr("bias [7], expected [8]"));
  EXPECT_THAT(message([](Case& c) { c.targets = c.targets.to(torch::kInt32); }, none),
              HasSubstr("targets Int"));
  EXPECT_THAT(message([](Case& c) { c.targets = c.targets + 3; }, none), HasSubstr("targets[0][0]: got 4"));
  EXPECT_THAT(message([](Case&) {}, {0.1, true, {}, 0}), HasSubstr("needs the number of each clip"));
}

TEST(TrainTransducer, RefusesASecondGradient) {
  const Case with;
  try {
    (void)torch::autograd::grad({with.loss()}, {with.f}, {}, {}, true);
    ADD_FAILURE() << "create_graph was taken";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("joint_loss: its kernels have no second gradient"));
  }
}

}  // namespace
}  // namespace octavo_train
