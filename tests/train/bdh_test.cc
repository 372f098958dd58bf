// Compares BDH with numbers of the published implementation (make_bdh_golden.py): logits, loss and every
// gradient.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/bdh.h"
#include "train/nn/dropout.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

// Returns 0.2 sin(0.37 i + phase), computed in double and rounded once: the weights of make_bdh_golden.py.
torch::Tensor wave(std::int64_t count, double phase) {
  return (0.2 * torch::sin(0.37 * torch::arange(count, torch::kFloat64) + phase)).to(torch::kFloat32);
}

torch::Tensor tokens(std::int64_t batch, std::int64_t length, std::int64_t shift) {
  return ((torch::arange(batch * length, torch::kInt64) * 37 + 11 + shift) % 256).view({batch, length});
}

struct Sampled {
  double norm = 0.0;
  std::vector<double> values;
};
struct Case {
  std::string name;
  BdhConfig config;
  std::int64_t batch = 0, length = 0;
  double loss = 0.0;
  std::map<std::string, Sampled> tensors;  // "logits", and parameters' gradients by name
};

Sampled read_sampled(std::istringstream& line) {
  Sampled out;
  line >> out.norm;
  for (double value = 0.0; line >> value;) out.values.push_back(value);
  return out;
}

std::vector<Case> read_cases() {
  std::ifstream file(OCTAVO_TEST_BDH_GOLDEN);
  std::vector<Case> cases;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string kind, name;
    line >> kind;
    if (kind == "case") {
      Case next;
      line >> next.name >> next.config.n_layer >> next.config.n_embd >> next.config.n_head >>
          next.config.mlp_internal_dim_multiplier >> next.batch >> next.length;
      next.config.dropout = 0.0;
      cases.push_back(next);
    } else if (kind == "loss") {
      line >> cases.back().loss;
    } else {
      if (kind == "grad") line >> name;
      cases.back().tensors[kind == "grad" ? name : kind] = read_sampled(line);
    }
  }
  return cases;
}

// Returns the relative tolerance. The golden numbers are computed in double. In double only the order of sums
// differs. In fp32, errors grow with the number of terms of the longest sum (neurons of all heads) and with
// the number of layers; 2^-24 is half an ulp. The factor covers norms and attention, which divide by sums of
// the same kind, and the weights, which are waves: they are nearly parallel, so gradients of four layers are
// differences of terms some ten times larger. The reference's own fp32 error is equally large.
double tolerance(const Case& given, torch::ScalarType type) {
  if (type == torch::kFloat64) return 1e-11;
  const auto terms = static_cast<double>(given.config.neurons() * given.config.n_head);
  return 64.0 * static_cast<double>(given.config.n_layer) * std::sqrt(terms) * std::ldexp(1.0, -24);
}

void expect_near(const torch::Tensor& got, const Sampled& want, double relative, const std::string& what) {
  const torch::Tensor flat = got.detach().flatten().to(torch::kFloat64);
  EXPECT_NEAR(flat.norm().item<double>(), want.norm, relative * want.norm) << what;
  const auto count = static_cast<std::int64_t>(want.values.size());
  const std::int64_t step = std::max<std::int64_t>(1, flat.numel() / 24);
  // An element's error is relative to the largest element, because small elements are differences of large
  // terms.
  const double scale = flat.abs().max().item<double>();
  for (std::int64_t i = 0; i < count; ++i) {
    const double element = flat[i * step].item<double>();
    EXPECT_NEAR(element, want.values[static_cast<std::size_t>(i)], relative * scale)
        << what << " sample " << i;
  }
}

void expect_equals_reference(const Case& given, torch::ScalarType type) {
  SCOPED_TRACE(given.name);
  Bdh model(given.config);
  model->to(type);
  {
    const torch::NoGradGuard guard;
    double phase = 0.0;
    for (const char* name : {"decoder", "encoder", "encoder_v", "lm_head", "embed.weight"}) {
      torch::Tensor weight = model->named_parameters()[name];  // a copy: the dictionary is a temporary
      weight.copy_(wave(weight.numel(), phase).view(weight.sizes()));
      phase += 1.0;
    }
  }
  const torch::Tensor logits = model->forward(tokens(given.batch, given.length, 0));
  ASSERT_EQ(logits.scalar_type(), type);
  const torch::Tensor loss = torch::nn::functional::cross_entropy(
      logits.view({-1, 256}), tokens(given.batch, given.length, 37).view(-1));
  loss.backward();
  const double near = tolerance(given, type);
  EXPECT_NEAR(loss.item<double>(), given.loss, near * given.loss);
  expect_near(logits, given.tensors.at("logits"), near, "logits");
  for (const auto& parameter : model->named_parameters())
    expect_near(parameter.value().grad(), given.tensors.at(parameter.key()), near, parameter.key());
  EXPECT_EQ(given.tensors.size(), model->named_parameters().size() + 1);
}

TEST(Bdh, EqualsTheReference) {
  const std::vector<Case> cases = read_cases();
  ASSERT_EQ(cases.size(), 2U);
  for (const Case& given : cases) {
    expect_equals_reference(given, torch::kFloat64);
    expect_equals_reference(given, torch::kFloat32);
  }
}

TEST(Bdh, LooksAtThePastAlone) {
  torch::manual_seed(1);
  Bdh model(BdhConfig{2, 16, 2, 8, 256, 0.0});
  const torch::Tensor before = tokens(1, 8, 0);
  torch::Tensor after = before.clone();
  after[0][5] = (after[0][5] + 1) % 256;
  const torch::Tensor change = (model->forward(before) - model->forward(after)).abs().sum(-1)[0];
  for (int i = 0; i < 5; ++i) EXPECT_EQ(change[i].item<float>(), 0.0F) << i;
  EXPECT_GT(change[5].item<float>(), 0.0F);
}

TEST(Bdh, DropoutActsInTrainingOnly) {
  torch::manual_seed(1);
  Bdh model(BdhConfig{2, 16, 2, 8, 256, 0.5});
  const torch::Tensor input = tokens(1, 8, 0);
  const auto logits = [&](std::uint64_t seed, std::uint64_t step, std::int64_t sample) {
    return model->forward(input, {seed, step, torch::full({1}, sample, torch::kInt64)});
  };
  const torch::Tensor once = logits(1, 2, 3);
  EXPECT_TRUE(torch::equal(logits(1, 2, 3), once));
  EXPECT_FALSE(torch::equal(logits(2, 2, 3), once)) << "the seed";
  EXPECT_FALSE(torch::equal(logits(1, 3, 3), once)) << "the step";
  EXPECT_FALSE(torch::equal(logits(1, 2, 4), once)) << "the sample";
  EXPECT_THROW(model->forward(input), c10::Error) << "a pass without numbers of its texts";
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(input), logits(1, 2, 3)));
  EXPECT_FALSE(torch::equal(model->forward(input), once));
}

// Masks depend on the text, so a batch may be split and its rows reordered: only the order of sums changes.
TEST(Bdh, DropoutDoesNotDependOnTheBatch) {
  torch::manual_seed(1);
  Bdh model(BdhConfig{3, 32, 2, 8, 256, 0.5});
  const torch::Tensor input = torch::randint(256, {4, 8});
  const auto logits = [&](const std::vector<std::int64_t>& rows) {
    const torch::Tensor index = torch::tensor(rows, torch::kInt64);
    return model->forward(input.index({index}), {1, 2, index + 70});
  };
  const torch::Tensor whole = logits({0, 1, 2, 3});
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{2}, {3, 1}, {1, 0, 3, 2}}) {
    const torch::Tensor part = whole.index({torch::tensor(rows, torch::kInt64)});
    EXPECT_TRUE(torch::allclose(logits(rows), part, 1e-4, 1e-5)) << rows.size();
  }
}

// Computes the logits in the published order, texts first, with the same dropout: each layer has its own
// mask, and a text's elements are counted head by head.
torch::Tensor plain_logits(Bdh& model, const torch::Tensor& input, const DropoutKey& pass) {
  const BdhConfig& config = model->config();
  const auto weights = model->named_parameters();
  const auto norm = [](const torch::Tensor& x) { return torch::layer_norm(x, {x.size(-1)}, {}, {}, 1e-5); };
  const std::int64_t batch = input.size(0), length = input.size(1), pairs = config.neurons() / 2;
  const torch::Tensor pair = torch::arange(pairs, torch::kFloat64) / static_cast<double>(pairs);
  const torch::Tensor angle =
      torch::arange(length, torch::kFloat64).view({-1, 1}) / torch::pow(torch::full({}, 65536.0), pair);
  torch::Tensor x = norm(torch::embedding(weights["embed.weight"], input));
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    const torch::Tensor values = x.unsqueeze(1);
    const torch::Tensor code = values.matmul(weights["encoder"]).relu();  // [batch, heads, length, neurons]
    const auto both = code.view({batch, config.n_head, length, pairs, 2}).unbind(-1);
    const torch::Tensor turned = torch::stack({both[0] * angle.cos() - both[1] * angle.sin(),
                                               both[1] * angle.cos() + both[0] * angle.sin()},
                                              -1)
                                     .flatten(-2);
    const torch::Tensor seen = norm(turned.matmul(turned.mT()).tril(-1).matmul(values));
    const torch::Tensor answers = dropout(code * seen.matmul(weights["encoder_v"]).relu(), config.dropout,
                                          true, pass, static_cast<std::uint32_t>(layer));
    x = norm(x + norm(answers.transpose(1, 2).flatten(-2).matmul(weights["decoder"])));
  }
  return x.matmul(weights["lm_head"]);
}

TEST(Bdh, DropoutIsByLayerAndElement) {
  torch::manual_seed(1);
  Bdh model(BdhConfig{3, 16, 2, 8, 256, 0.5});
  {
    const torch::NoGradGuard guard;
    for (torch::Tensor& weight : model->parameters()) weight.mul_(10);
  }
  model->to(torch::kFloat64);
  const torch::Tensor input = tokens(2, 8, 0);
  const DropoutKey pass{1, 2, torch::tensor({7, 4}, torch::kInt64)};
  const torch::Tensor expected = plain_logits(model, input, pass);
  // The model's angles are in fp32.
  EXPECT_TRUE(
      torch::allclose(model->forward(input, pass), expected, 1e-3, 1e-3 * expected.std().item<double>()));
}

TEST(Bdh, CheckpointingChangesNoGradient) {
  std::vector<std::vector<torch::Tensor>> grads;
  for (const bool checkpointed : {false, true}) {
    torch::manual_seed(1);
    Bdh model(BdhConfig{3, 16, 2, 8, 256, 0.2, checkpointed});
    model->forward(tokens(2, 8, 0), {2, 1, torch::tensor({5, 6}, torch::kInt64)}).square().mean().backward();
    grads.emplace_back();
    for (const torch::Tensor& parameter : model->parameters()) grads.back().push_back(parameter.grad());
  }
  ASSERT_EQ(grads[0].size(), 5U);
  // Each layer's gradient is added to the shared weights in the same order, but by another code path.
  for (std::size_t i = 0; i < grads[0].size(); ++i) EXPECT_TRUE(torch::equal(grads[0][i], grads[1][i])) << i;
}

TEST(Bdh, RefusesWhatIsNoModel) {
  EXPECT_THROW(Bdh(BdhConfig{0, 16, 2, 8, 256, 0.0}), c10::Error);
  EXPECT_THROW(Bdh(BdhConfig{1, 16, 3, 8, 256, 0.0}), c10::Error);
  EXPECT_THROW(Bdh(BdhConfig{1, 16, 2, 8, 256, 1.0}), c10::Error);
  EXPECT_THROW(Bdh(BdhConfig{1, 16, 2, 8, 256, 0.0})->forward(torch::zeros({3}, torch::kInt64)), c10::Error);
}

}  // namespace
}  // namespace octavo_train
