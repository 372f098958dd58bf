// Products in FP8 of the LibTorch adapter, on the CPU's reference: within the error that the formats imply of
// float64, forward and backward; whose scales, codes and states are whose.
// SPDX-License-Identifier: MIT
#include "tests/torch/fp8_support.h"

#include <cmath>
#include <limits>
#include <thread>

namespace test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(TorchFp8, ProductsAndGradientsAreWithinTheBound) {
  const Reference on;
  for (const char* recipe : {"current", "rowwise", "block", "delayed"}) {
    for (const char* format : {"hybrid", "e4m3", "e5m2"}) {
      for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
        for (const bool transposed : {true, false}) {
          Operands operands({2, 24, 64}, transposed ? at::IntArrayRef({64, 48}) : at::IntArrayRef({48, 64}),
                            type);
          const auto context = fp8::Context::make(always(recipe, format));
          if (std::string(recipe) == "delayed") {  // scales that fit come with the second step
            operands.run(
                [&](const auto& x, const auto& w) { return context->matmul(x, transposed ? w : w.t()); });
            context->step_done();
          }
          operands.run(
              [&](const auto& x, const auto& w) { return context->matmul(x, transposed ? w : w.t()); });
          operands.expect_within_bound(format, transposed ? "" : "t",
                                       std::string(recipe) + " " + format + " " + c10::toString(type));
        }
      }
    }
  }
}

TEST(TorchFp8, GroupsOneInputAndOneOutput) {
  const Reference on;
  for (const fp8::Shared shared : {fp8::Shared{}, fp8::Shared{true, false}, fp8::Shared{false, true}}) {
    const at::DimVector x = shared.one_input ? at::DimVector{32, 64} : at::DimVector{3, 32, 64};
    Operands batch(x, {3, 64, 48}, torch::kFloat32);
    const auto context = fp8::Context::make(always("current"));
    batch.run([&](const auto& a, const auto& b) { return context->matmul_batched(a, b, shared); });
    EXPECT_EQ(batch.y.sizes(), shared.one_output ? at::IntArrayRef({32, 48}) : at::IntArrayRef({3, 32, 48}));
    batch.expect_within_bound("hybrid", shared.one_output ? "sum" : "",
                              shared.one_input    ? "one input"
                              : shared.one_output ? "one output"
                                                  : "batched");
  }
}

TEST(TorchFp8, TokensThatAreNoMultipleOf16) {
  const Reference on;
  for (const at::DimVector& sizes : {at::DimVector{1, 64}, {64}, {3, 7, 64}, {17, 64}}) {
    Operands odd(sizes, {64, 32}, torch::kFloat32);
    const auto context = fp8::Context::make(always("current"));
    odd.run([&](const auto& x, const auto& w) { return context->matmul(x, w); });
    EXPECT_EQ(odd.y.dim(), static_cast<std::int64_t>(sizes.size()));
    odd.expect_within_bound("hybrid", "", "odd tokens");
  }
}

TEST(TorchFp8, ShapesWithoutFp8HaveTheBitsOfTorch) {
  const Reference on;
  const auto context = fp8::Context::make(always());
  std::vector<std::string> lines;
  context->set_log([&](const std::string& line) { lines.push_back(line); });
  Operands odd({32, 40}, {40, 30}, torch::kFloat32);
  for (int again = 0; again < 2; ++again)
    odd.run([&](const auto& x, const auto& w) { return context->matmul(x, w); });
  EXPECT_TRUE(same_bits(odd.y, odd.x.matmul(odd.w)));
  ASSERT_EQ(lines.size(), 1U) << "said once";
  EXPECT_THAT(lines[0], AllOf(HasSubstr("[40, 30] stays plain"), HasSubstr("expected a multiple of 16")));
  Operands groups({3, 20, 32}, {3, 32, 32}, torch::kFloat32);
  groups.run([&](const auto& x, const auto& w) { return context->matmul_batched(x, w); });
  EXPECT_TRUE(same_bits(groups.y, groups.x.bmm(groups.w)));
  EXPECT_THAT(lines.back(), HasSubstr("tokens: got 20 in each of 3 groups"));
  Operands wide({32, 32}, {32, 32}, torch::kFloat64);
  wide.run([&](const auto& x, const auto& w) { return context->matmul(x, w); });
  EXPECT_TRUE(same_bits(wide.y, wide.x.matmul(wide.w)));
  Operands gaps({32, 32}, {32, 64}, torch::kFloat32);
  gaps.run([&](const auto& x, const auto& w) { return context->matmul(x, w.slice(1, 0, 64, 2)); });
  EXPECT_THAT(lines.back(), HasSubstr("not dense"));
  const torch::Tensor none = context->matmul(torch::zeros({0, 32}), torch::zeros({32, 16}));
  EXPECT_EQ(none.sizes(), at::IntArrayRef({0, 16}));
}

TEST(TorchFp8, WrongShapesAndDtypesAreNamed) {
  const Reference on;
  const auto context = fp8::Context::make(always());
  EXPECT_THAT(error_of([&] {
                context->matmul(torch::zeros({2, 5}), torch::zeros({4, 3}));
              }),
              HasSubstr("matmul got x [2, 5] and a weight [4, 3], expected [.., in] and [in, out]"));
  EXPECT_THAT(error_of([&] {
                context->matmul_batched(torch::zeros({2, 5, 4}), torch::zeros({3, 4, 3}));
              }),
              HasSubstr("expected [groups, tokens, in] and [groups, in, out]"));
  EXPECT_THAT(error_of([&] {
                context->matmul(torch::zeros({16, 16}), torch::zeros({16, 16}, torch::kBFloat16));
              }),
              HasSubstr("x is Float and the weight BFloat16"));
  EXPECT_THAT(error_of([&] { fp8::Context::make(always("later")); }), HasSubstr("later"));
  fp8::Options options = always();
  options.amax_history_len = 0;
  EXPECT_THAT(error_of([&] { fp8::Context::make(options); }), HasSubstr("amax_history_len"));
  options = always();
  options.select = "sometimes";
  EXPECT_THAT(error_of([&] { fp8::Context::make(options); }),
              HasSubstr("select is \"sometimes\", expected \"measure\" or \"always\""));
}

TEST(TorchFp8, ADeviceWithoutFp8IsAnErrorOrStaysPlain) {
  Operands cpu({32, 64}, {64, 32}, torch::kFloat32);
  const auto context = fp8::Context::make(always());
  EXPECT_THAT(error_of([&] { context->matmul(cpu.x, cpu.w); }),
              AllOf(HasSubstr("device: got cpu"), HasSubstr("8.9"), HasSubstr("bf16")));
  fp8::Options options = always();
  options.fallback = "bf16";
  const auto fallen = fp8::Context::make(options);
  std::vector<std::string> lines;
  fallen->set_log([&](const std::string& line) { lines.push_back(line); });
  for (int again = 0; again < 2; ++again)
    cpu.run([&](const auto& x, const auto& w) { return fallen->matmul(x, w); });
  EXPECT_TRUE(same_bits(cpu.y, cpu.x.matmul(cpu.w)));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("got cpu"), HasSubstr("stay plain")));
}

TEST(TorchFp8, AutocastDecidesTheResultsDtype) {
  const Reference on;
  Operands mixed({32, 64}, {64, 32}, torch::kFloat32);
  const auto context = fp8::Context::make(always("current"));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
  const torch::Tensor y = context->matmul(mixed.x, mixed.w);
  const torch::Tensor half = context->matmul(mixed.x.to(torch::kBFloat16), mixed.w);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(half.scalar_type(), torch::kBFloat16);
  y.backward(torch::ones_like(y));
  EXPECT_EQ(mixed.x.grad().scalar_type(), torch::kFloat32);
  EXPECT_EQ(mixed.w.grad().scalar_type(), torch::kFloat32);
}

TEST(TorchFp8, OnlyWantedGradientsAreComputed) {
  const Reference on;
  Operands all({32, 64}, {64, 32}, torch::kFloat32), for_w = all, for_x = all;
  const auto run = [](Operands& operands) {
    const auto context = fp8::Context::make(always("current"));
    operands.run([&](const auto& x, const auto& w) { return context->matmul(x, w); });
  };
  run(all);
  for_w.x = all.x.detach(), for_w.w = all.w.detach().clone().requires_grad_();
  run(for_w);
  EXPECT_FALSE(for_w.x.grad().defined());
  EXPECT_TRUE(same_bits(for_w.w.grad(), all.w.grad()));
  for_x.x = all.x.detach().clone().requires_grad_(), for_x.w = all.w.detach();
  run(for_x);
  EXPECT_FALSE(for_x.w.grad().defined());
  EXPECT_TRUE(same_bits(for_x.x.grad(), all.x.grad()));

  // A gradient that does not come.
  const auto context = fp8::Context::make(always("current"));
  const torch::Tensor y = context->matmul(all.x, all.w), other = all.x.sum();
  EXPECT_FALSE(torch::autograd::grad({other}, {all.w}, {}, false, false, /*allow_unused=*/true)[0].defined());
  // Asked for alone, and twice from one graph.
  const auto one = torch::autograd::grad({y}, {all.x}, {all.dy}, /*retain_graph=*/true);
  EXPECT_TRUE(same_bits(one[0], all.x.grad()));
  const auto two = torch::autograd::grad({y}, {all.w}, {all.dy});
  EXPECT_TRUE(same_bits(two[0], all.w.grad()));
}

TEST(TorchFp8, TheGraphKeepsAByteAnElement) {
  const Reference on;
  const auto context = fp8::Context::make(always());
  Operands operands({32, 64}, {64, 32}, torch::kFloat32);
  torch::Tensor x = operands.x * 1;  // somebody else's would keep it
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory = x.storage().getWeakStorageImpl();
  const torch::Tensor y = context->matmul(x, operands.w);
  x.reset();
  EXPECT_TRUE(memory.expired());
  y.clone().relu_();
  context->matmul(operands.x, operands.w).relu_().sum().backward();  // changed in place, as torch's may be
  EXPECT_TRUE(operands.x.grad().defined());
}

TEST(TorchFp8, AWeightIsCastOncePerStep) {
  const Reference on;
  const auto context = fp8::Context::make(always());
  Operands operands({32, 64}, {64, 32}, torch::kFloat32);
  const torch::Tensor other = torch::randn({32, 64}).requires_grad_();
  const auto pass = [&] {
    operands.run([&](const auto& x, const auto& w) { return context->matmul(x, w); });
    context->matmul(other, operands.w).sum().backward();
  };
  pass();
  pass();
  EXPECT_EQ(context->weight_casts(), 1);
  context->step_done();
  pass();
  EXPECT_EQ(context->weight_casts(), 2);
  {
    const torch::NoGradGuard no_grad;
    operands.w.mul_(2);  // a change that torch knows of needs no call
  }
  pass();
  EXPECT_EQ(context->weight_casts(), 3);
}

TEST(TorchFp8, CodesThatAGraphNeedsOutliveTheStep) {
  const Reference on;
  const auto context = fp8::Context::make(always("current"));
  Operands operands({32, 64}, {64, 32}, torch::kFloat32);
  operands.run([&](const auto& x, const auto& w) { return context->matmul(x, w); });
  const torch::Tensor expected = operands.x.grad().clone();
  const torch::Tensor y = context->matmul(operands.x, operands.w);
  {
    const torch::NoGradGuard no_grad;
    operands.w.neg_();
  }
  context->step_done();
  context->matmul(operands.x, operands.w);  // casts the new values
  EXPECT_TRUE(same_bits(torch::autograd::grad({y}, {operands.x}, {operands.dy})[0], expected));
}

TEST(TorchFp8, ProductsWithOneWeightShareItsStates) {
  const Reference on;
  const auto context = fp8::Context::make(always());
  const torch::Tensor w = torch::full({32, 64}, -3.0).requires_grad_();
  context->add("layer.weight", w);
  const torch::Tensor small = torch::full({16, 64}, 2.0), large = torch::full({16, 64}, 5.0);
  const torch::Tensor y = context->matmul(small, w.t()) + context->matmul(large, w.t());
  (y * 7).sum().backward();
  EXPECT_TRUE(torch::equal(context->amaxes(), torch::tensor({5.0F, 3.0F, 7.0F})));
  {
    const torch::NoGradGuard no_grad;
    context->matmul(torch::full({16, 64}, 100.0), w.t());  // nothing is learned of it
  }
  EXPECT_TRUE(torch::equal(context->amaxes(), torch::tensor({5.0F, 3.0F, 7.0F})));
  context->step_done();
  EXPECT_TRUE(torch::equal(context->amaxes(), torch::zeros({3})));
  const torch::Tensor states = context->state().tensors.at(0).second;
  EXPECT_EQ(states[0][0].item<float>(), 448.0F / 5.0F);
  EXPECT_EQ(states[1][0].item<float>(), 448.0F / 3.0F);
  EXPECT_EQ(states[2][1].item<float>(), 57344.0F / 7.0F);
}

TEST(TorchFp8, ASkippedStepChangesNoScale) {
  const Reference on;
  for (const int kind : {0, 1, 2}) {
    const auto context = fp8::Context::make(always());
    Operands operands({16, 32}, {32, 16}, torch::kFloat32);
    const auto pass = [&](double factor) {
      (context->matmul(operands.x, operands.w) * factor).sum().backward();
    };
    pass(1.0);
    context->step_done();
    const torch::Tensor before = context->state().tensors.at(0).second;
    pass(std::numeric_limits<double>::infinity());
    EXPECT_FALSE(operands.x.grad().isfinite().all().item<bool>()) << "the step knows of it";
    if (kind == 0) context->step_done(true);
    if (kind == 1) context->step_done(torch::ones({}, torch::kUInt8));
    if (kind == 2) context->step_done(torch::zeros({1}, torch::kInt64));  // not skipped, by its mistake
    const torch::Tensor after = context->state().tensors.at(0).second;
    EXPECT_EQ(same_bits(before, after), kind != 2) << kind;
    pass(1.0);
    context->step_done();
    EXPECT_FALSE(same_bits(context->state().tensors.at(0).second, after)) << "the next one counts";
  }
}

TEST(TorchFp8, RanksAgreeOnMaxima) {
  const Reference on;
  const auto context = fp8::Context::make(always());
  Operands operands({16, 32}, {32, 16}, torch::kFloat32);
  context->add("a", operands.w);
  context->add("b", torch::zeros({16, 16}));
  operands.run([&](const auto& x, const auto& w) { return context->matmul(x, w); });
  const torch::Tensor own = context->amaxes();
  EXPECT_EQ(own.sizes(), at::IntArrayRef({6}));
  EXPECT_TRUE(torch::equal(own.slice(0, 3), torch::zeros({3})));
  context->set_amaxes(own.maximum(torch::full({6}, 9.0)));
  EXPECT_TRUE(torch::equal(context->amaxes(), own.maximum(torch::full({6}, 9.0))));
  EXPECT_THAT(error_of([&] { context->set_amaxes(torch::zeros({3})); }), HasSubstr("expected [6]"));
  EXPECT_EQ(fp8::Context::make(always("current"))->amaxes().numel(), 0);
}

TEST(TorchFp8, AStateGoesOnWithTheSameBits) {
  const Reference on;
  Operands operands({16, 32}, {32, 16}, torch::kFloat32);
  const auto step = [&](fp8::Context& context, int number) {
    (context.matmul(operands.x * number, operands.w) / number).sum().backward();
    context.step_done();
  };
  const auto through = fp8::Context::make(always()), first = fp8::Context::make(always());
  for (const auto& context : {through, first}) context->add("w", operands.w);
  for (int number = 1; number <= 4; ++number) step(*through, number);
  for (int number = 1; number <= 2; ++number) step(*first, number);
  const auto second = fp8::Context::make(always());
  second->add("w", operands.w);
  second->load(first->state());
  for (int number = 3; number <= 4; ++number) step(*second, number);
  EXPECT_TRUE(same_bits(second->state().tensors.at(0).second, through->state().tensors.at(0).second));
  EXPECT_TRUE(same_bits(second->matmul(operands.x, operands.w), through->matmul(operands.x, operands.w)));

  const auto other = fp8::Context::make(always());
  other->add("v", operands.w);
  EXPECT_THAT(error_of([&] { other->load(first->state()); }),
              HasSubstr("\"w\", which is none of the weights"));
  EXPECT_THAT(error_of([&] { other->load({}); }), HasSubstr("nothing of \"v\""));
  fp8::Options options = always();
  options.amax_history_len = 8;
  const auto shorter = fp8::Context::make(options);
  shorter->add("w", operands.w);
  EXPECT_THAT(error_of([&] { shorter->load(first->state()); }), HasSubstr("keep amax_history_len"));
  for (const auto& [slot, value] :
       {std::pair(0, 0.0), {1, -1.0}, {1, HUGE_VAL}, {0, std::nan("")}, {4, -1.0}}) {
    fp8::State damaged = first->state();
    damaged.tensors[0].second[1][slot] = value;
    EXPECT_THAT(error_of([&] { second->load(damaged); }), HasSubstr("\"w\" is damaged")) << slot << value;
  }
}

TEST(TorchFp8, DecisionsAreKeptAsText) {
  fp8::Shape shape;
  shape.groups = 4, shape.tokens = 1000, shape.inputs = 64, shape.outputs = 32, shape.shared.one_input = true;
  fp8::Decision decision;
  decision.shape = fp8::ShapeKey(shape);
  decision.passes = 5;
  decision.times.plain[1] = 12.5, decision.times.casts_of_weight = 0.25;
  const auto context = fp8::Context::make(always());
  context->adopt({decision.saved()});
  ASSERT_EQ(context->decisions().size(), 1U);
  EXPECT_EQ(context->state().decisions, std::vector<std::string>{decision.saved()});
  const fp8::Decision back = context->decisions()[0];
  EXPECT_EQ(back.saved(), decision.saved());
  EXPECT_THAT(back.text(),
              AllOf(HasSubstr("4 x [up to 1024 tokens, 64] with [64, 32], one input: forward fp8"),
                    HasSubstr("dgrad plain (0.0 us in fp8, 12.5 plain)"), HasSubstr("wgrad fp8")));
  for (const char* bad : {"", "1 2 3", "1 2 3 4 5 6 7 8 9 10 8 0 0 0 0 0 0 0 0 0 0 0 0 1", "x"})
    EXPECT_THAT(error_of([&] { context->adopt({bad}); }), HasSubstr("is no decision")) << bad;
}

TEST(TorchFp8, ContextsWithAddedWeightsTakeNoOthers) {
  const Reference on;
  Operands operands({16, 32}, {32, 16}, torch::kFloat32), stranger({16, 32}, {32, 16}, torch::kFloat32);
  const auto context = fp8::Context::make(always());
  context->set_log([](const std::string&) {});
  context->add("w", operands.w);
  EXPECT_TRUE(same_bits(context->matmul(stranger.x, stranger.w), stranger.x.matmul(stranger.w)));
  EXPECT_FALSE(same_bits(context->matmul(operands.x, operands.w), operands.x.matmul(operands.w)));
  // New memory, the same parameter.
  operands.w.set_data(stranger.w.detach().clone());
  EXPECT_FALSE(same_bits(context->matmul(operands.x, operands.w), operands.x.matmul(operands.w)));
  EXPECT_THAT(error_of([&] { context->add("w", stranger.w); }), HasSubstr("two weights with the name \"w\""));

  // Without them weights come and go, and their states with them.
  const auto open = fp8::Context::make(always());
  for (int i = 0; i < 20; ++i) {
    const torch::Tensor w = torch::full({32, 16}, 1.0 + i).requires_grad_();
    const torch::Tensor y = open->matmul(torch::ones({16, 32}), w);
    EXPECT_LE(std::abs(y[0][0].item<double>() - 32.0 * (1.0 + i)), 2.0 * (1.0 + i));
    y.sum().backward();
  }
  EXPECT_EQ(open->state().tensors.size(), 1U);
}

TEST(TorchFp8, EveryChoiceOfPassesHasItsGradients) {
  const Reference on;
  fp8::Options options = always("current");
  options.select = "measure";
  struct Case {
    at::DimVector x, w;
    bool batched, transposed;
    fp8::Shared shared;
  };
  for (const Case& one :
       {Case{{2, 24, 32}, {32, 48}, false, true, {}}, Case{{5, 32}, {48, 32}, false, false, {}},
        Case{{1, 16, 32}, {32, 48}, false, true, {}}, Case{{3, 16, 32}, {3, 32, 48}, true, true, {}},
        Case{{16, 32}, {3, 32, 48}, true, true, {true, false}},
        Case{{3, 16, 32}, {3, 32, 48}, true, true, {false, true}}}) {
    for (std::uint32_t passes = 0; passes <= fp8::kAllPasses; ++passes) {
      Operands operands(one.x, one.w, torch::kFloat32);
      fp8::Shape shape;
      shape.groups = one.batched ? 3 : 1, shape.tokens = operands.x.numel() / 32;
      if (one.batched && !one.shared.one_input) shape.tokens /= 3;
      shape.inputs = 32, shape.outputs = 48, shape.transposed_weight = one.transposed,
      shape.shared = one.shared;
      fp8::Decision decision;
      decision.shape = fp8::ShapeKey(shape), decision.passes = passes;
      const auto context = fp8::Context::make(options);
      context->adopt({decision.saved()});
      operands.run([&](const auto& x, const auto& w) {
        return one.batched ? context->matmul_batched(x, w, one.shared)
                           : context->matmul(x, one.transposed ? w : w.t());
      });
      const torch::Tensor x = operands.x, w = one.transposed ? operands.w : operands.w.t();
      const torch::Tensor all = x.matmul(w), plain = one.shared.one_output ? all.sum(0) : all;
      const auto grads = torch::autograd::grad({plain}, {operands.x, operands.w}, {operands.dy});
      const auto fits = [&](const torch::Tensor& got, const torch::Tensor& exact, std::uint32_t pass) {
        const double off = ((got - exact).norm() / exact.norm()).item<double>();
        const bool in_fp8 = (passes & fp8::bit(pass)) != 0;
        EXPECT_LT(off, in_fp8 ? 0.1 : 1e-5) << "pass " << pass << " of choice " << passes;
        EXPECT_EQ(off > 1e-3, in_fp8) << "pass " << pass << " of choice " << passes;
      };
      fits(operands.y, plain, fp8::kForward);
      fits(operands.x.grad(), grads[0], fp8::kDgrad);
      fits(operands.w.grad(), grads[1], fp8::kWgrad);
    }
  }
}

TEST(TorchFp8, AWeightThatDiesBeforeItsBackwardPassKeepsItsStates) {
  const Reference on;
  const auto context = fp8::Context::make(always("delayed"));
  const auto frozen = [] { return torch::ones({32, 16}); };
  const torch::Tensor x = torch::ones({16, 32}).requires_grad_();
  const torch::Tensor y = context->matmul(x, frozen());  // only the graph knows of this weight now
  const torch::Tensor second = frozen();
  context->matmul(x, second);
  y.backward(torch::full({16, 16}, 3.0));
  // Three maxima (x, w, dy) for each weight. The second weight has had no backward pass.
  EXPECT_TRUE(torch::equal(context->amaxes(), torch::tensor({1.0F, 1.0F, 3.0F, 1.0F, 1.0F, 0.0F})));
}

TEST(TorchFp8, TheSiteOfADeadWeightIsUsedAgain) {
  const Reference on;
  const auto context = fp8::Context::make(always("delayed"));
  for (int i = 0; i < 3; ++i) context->matmul(torch::ones({16, 32}), torch::ones({32, 16}));
  EXPECT_EQ(context->amaxes().numel(), 3);
}

TEST(TorchFp8, GradientsOfGradientsAreRefused) {
  const Reference on;
  const auto context = fp8::Context::make(always("current"));
  Operands operands({16, 32}, {32, 16}, torch::kFloat32);
  const torch::Tensor y = context->matmul(operands.x, operands.w).square().sum();
  EXPECT_THAT(error_of([&] {
                torch::autograd::grad({y}, {operands.x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
              }),
              HasSubstr("create_graph"));
  EXPECT_TRUE(torch::autograd::grad({y}, {operands.x})[0].defined());
}

TEST(TorchFp8, AParameterWithOtherMemoryIsCastAnew) {
  const Reference on;
  const auto context = fp8::Context::make(always("current"));
  Operands operands({16, 32}, {32, 16}, torch::kFloat32);
  context->add("w", operands.w);
  const torch::Tensor own = operands.w.detach(), average = own * -2;
  const auto product = [&] {
    const torch::NoGradGuard no_grad;
    return context->matmul(operands.x, operands.w);
  };
  const torch::Tensor before = product();
  operands.w.set_data(average);  // as an evaluation of averaged weights does, and back
  EXPECT_TRUE(same_bits(product(), before * -2));
  operands.w.set_data(own);
  EXPECT_TRUE(same_bits(product(), before));
}

TEST(TorchFp8, AnEvaluationInInferenceModeMayComeFirst) {
  const Reference on;
  const auto context = fp8::Context::make(always());
  Operands operands({16, 32}, {32, 16}, torch::kFloat32);
  {
    const c10::InferenceMode inference;
    context->matmul(operands.x, operands.w);
  }
  for (int step = 0; step < 2; ++step) {
    operands.run([&](const auto& x, const auto& w) { return context->matmul(x, w); });
    context->step_done(torch::zeros({}));
  }
  EXPECT_TRUE(operands.x.grad().isfinite().all().item<bool>());
  EXPECT_GT(context->state().tensors.at(0).second[1][0].item<float>(), 1.0F) << "scales move on";
}

TEST(TorchFp8, WeightsThatTakeTheMemoryOfOthersKeepTheirStates) {
  const Reference on;
  const auto context = fp8::Context::make(always());
  std::vector<float> a(32 * 16, 1.0F), b(32 * 16, 2.0F);
  const torch::Tensor x = torch::ones({16, 32}).requires_grad_();
  const auto weight = [](std::vector<float>& memory) { return torch::from_blob(memory.data(), {32, 16}); };
  {
    const torch::Tensor first = weight(a), second = weight(b);
    context->matmul(x, first), context->matmul(x, second);
  }
  const torch::Tensor third = weight(b);
  context->matmul(x, third);
  const torch::Tensor fourth = weight(a);
  context->matmul(x, fourth);
  context->matmul(x, third);
  EXPECT_EQ(context->state().tensors.size(), 2U);
}

// The loop of the guide.
struct GuideModel : torch::nn::Module {
  torch::Tensor first = register_parameter("first", 0.2 * torch::randn({32, 64}));
  torch::Tensor second = register_parameter("second", 0.2 * torch::randn({16, 64}));

  torch::Tensor forward(const torch::Tensor& x) const {
    return fp8::matmul(fp8::matmul(x, first).relu(), second.t());
  }
};

TEST(TorchFp8, TheLoopOfTheGuideLearns) {
  const Reference on;
  torch::manual_seed(8);
  GuideModel model;
  const torch::Tensor x = torch::randn({64, 32}), y = torch::randn({64, 16});
  octavo::torch::AdamW opt(model.parameters(), AdamWOptions(1e-2));
  double begin = 0.0, end = 0.0;
  fp8::Options options;
  options.amax_history_len = 16;
  const auto context = fp8::Context::make(options);
  for (const auto& parameter : model.named_parameters()) context->add(parameter.key(), parameter.value());
  for (int step = 0; step < 50; ++step) {
    opt.zero_grad();
    torch::Tensor loss;
    {
      const fp8::Scope scope(context);  // what fp8::matmul in the model finds
      loss = torch::mse_loss(model.forward(x), y);
    }
    loss.backward();
    opt.step();
    context->step_done();  // new scales; weights are cast anew
    end = loss.item<double>();
    if (step == 0) begin = end;
  }
  EXPECT_LT(end, 0.3 * begin);
  EXPECT_EQ(context->weight_casts(), 100);
}

TEST(TorchFp8, TheScopeOfAThread) {
  const Reference on;
  Operands operands({16, 32}, {32, 16}, torch::kFloat32);
  const auto context = fp8::Context::make(always());
  EXPECT_EQ(fp8::current(), nullptr);
  {
    const fp8::Scope scope(context);
    EXPECT_EQ(fp8::current(), context);
    {
      const fp8::Scope plain(nullptr);
      EXPECT_EQ(fp8::current(), nullptr);
    }
    std::thread([] { EXPECT_EQ(fp8::current(), nullptr); }).join();
    EXPECT_TRUE(same_bits(fp8::matmul(operands.x, operands.w), context->matmul(operands.x, operands.w)));
    EXPECT_EQ(context->weight_casts(), 1);
  }
  EXPECT_EQ(fp8::current(), nullptr);
  fp8::matmul(operands.x, operands.w);
  EXPECT_GE(fp8::default_context()->weight_casts(), 1);
}

}  // namespace
}  // namespace test
