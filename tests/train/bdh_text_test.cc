// Tests BDH on a growing text: the logits equal those of computing the complete text again, and a token costs
// the same after a text of any length.
// SPDX-License-Identifier: MIT
#include "tests/train/parts_support.h"
#include "train/optim/precision.h"
#include "train/tasks/text/bdh.h"

#include <ATen/record_function.h>

#include <cmath>

namespace octavo_train {
namespace {

const BdhConfig kConfig{3, 32, 4, 16, kByteVocabulary, 0.0};

// Makes a model with weights far from zero, because with a fresh model's weights the attention hardly
// matters.
std::unique_ptr<BdhImpl> model_in(torch::ScalarType type, double deviation) {
  torch::manual_seed(21);
  auto model = std::make_unique<BdhImpl>(kConfig);
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& param : model->parameters())
    param.copy_(param.normal_(0.0, deviation).to(torch::kBFloat16));  // exact in every precision
  model->to(type);
  model->eval();
  return model;
}

torch::Tensor some_tokens(std::int64_t length) {
  torch::manual_seed(22);
  return torch::randint(256, {length});
}

// Returns the logits after each piece.
torch::Tensor in_pieces(TextModel& model, const torch::Tensor& tokens, const std::vector<int>& pieces) {
  const std::unique_ptr<GenerationState> text = model.begin_text();
  std::vector<torch::Tensor> out;
  std::int64_t at = 0;
  for (const int piece : pieces) {
    out.push_back(text->append(tokens.slice(0, at, at + piece)));
    at += piece;
  }
  EXPECT_EQ(at, tokens.size(0));
  return torch::stack(out);
}

// Returns the logits at the same positions, computed from the complete text.
torch::Tensor at_ends(TextModel& model, const torch::Tensor& tokens, const std::vector<int>& pieces) {
  const torch::Tensor logits = model.forward(tokens.unsqueeze(0))[0];
  std::vector<torch::Tensor> out;
  std::int64_t at = 0;
  for (const int piece : pieces) out.push_back(logits[(at += piece) - 1]);
  return torch::stack(out);
}

double relative(const torch::Tensor& got, const torch::Tensor& want) {
  return ((got - want).norm() / want.norm()).item<double>();
}

const std::vector<int> kPieces = {9, 1, 1, 1, 6, 1, 20, 1, 1, 1};  // 42 tokens

TEST(BdhText, HasTheLogitsOfTheWholeText) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = some_tokens(42);
  for (const auto type : {torch::kFloat64, torch::kFloat32}) {
    const auto model = model_in(type, 0.3);
    // Sums have another order: over the neurons of all heads, or over the tokens, once per layer. 2^-24
    // (2^-53) is half an ulp. The factor 64 is for norms, which divide by sums of the same kind, as in
    // bdh_test.cc.
    const auto terms = static_cast<double>(kConfig.neurons() * kConfig.n_head);
    const double half_ulp = type == torch::kFloat64 ? 0x1p-53 : 0x1p-24;
    const double near = 64.0 * static_cast<double>(kConfig.n_layer) * std::sqrt(terms) * half_ulp;
    const torch::Tensor expected = at_ends(*model, tokens, kPieces);
    const torch::Tensor got = in_pieces(*model, tokens, kPieces);
    EXPECT_EQ(got.scalar_type(), type);
    for (std::int64_t i = 0; i < expected.size(0); ++i)
      EXPECT_LT(relative(got[i], expected[i]), near) << type << " after piece " << i;
    // The oldest token must matter at the end; otherwise the comparison above would not detect its loss.
    torch::Tensor other = tokens.clone();
    other[0] = (other[0] + 1) % 256;
    const torch::Tensor changed = in_pieces(*model, other, kPieces);
    EXPECT_GT(relative(changed[-1], got[-1]), 100 * near) << type;
  }
}

TEST(BdhText, IsAsGoodInBf16AsTheWholeText) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = some_tokens(42);
  const torch::Tensor expected = at_ends(*model_in(torch::kFloat32, 0.02), tokens, kPieces);
  for (const auto weights : {torch::kFloat32, torch::kBFloat16}) {
    const auto model = model_in(weights, 0.02);
    const AutocastScope autocast(torch::kCPU, ComputeType::bfloat16);
    const torch::Tensor got = in_pieces(*model, tokens, kPieces).to(torch::kFloat32);
    // The bound is that of Bf16LogitsAreNearThoseOfFp32 in bdh_precision_test.cc, which counts the roundings.
    EXPECT_LT(relative(got, expected), 0x1p-8 * std::sqrt(24.0 * static_cast<double>(kConfig.n_layer) + 2));
    EXPECT_GT(relative(got, expected), 0x1p-12) << "computed in fp32?";
  }
}

// Counts the elements of the inputs of torch's operators during its lifetime.
class WorkCount {
 public:
  WorkCount() {
    elements = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&WorkCount::add).needsInputs(true));
  }
  ~WorkCount() { at::removeCallback(handle_); }
  WorkCount(const WorkCount&) = delete;
  WorkCount& operator=(const WorkCount&) = delete;
  [[nodiscard]] static std::int64_t so_far() { return elements; }

 private:
  static std::unique_ptr<at::ObserverContext> add(const at::RecordFunction& function) {
    for (const c10::IValue& each : function.inputs()) {
      if (each.isTensor() && each.toTensor().defined()) elements += each.toTensor().numel();
    }
    return nullptr;
  }
  static inline thread_local std::int64_t elements = 0;
  at::CallbackHandle handle_ = 0;
};

TEST(BdhText, EveryTokenCostsTheSame) {
  const torch::NoGradGuard no_grad;
  const auto model = model_in(torch::kFloat32, 0.02);
  const auto cost = [](GenerationState& text, const torch::Tensor& tokens) {
    const WorkCount count;
    text.append(tokens);
    return WorkCount::so_far();
  };
  const torch::Tensor one = some_tokens(1);
  std::vector<std::int64_t> costs;
  for (const int before : {1, 10, 400}) {
    const auto text = model->begin_text();
    text->append(some_tokens(before));
    costs.push_back(cost(*text, one));
  }
  EXPECT_GT(costs[0], 0);
  EXPECT_EQ(costs[1], costs[0]);
  EXPECT_EQ(costs[2], costs[0]);
  // The count does detect work that grows.
  EXPECT_GT(cost(*model->begin_text(), some_tokens(400)), 20 * cost(*model->begin_text(), one));
}

}  // namespace
}  // namespace octavo_train
