// Products in FP8 on a GPU: within the bound of the CPU's tests, the reference's scales in bits, and choices
// by time.
// SPDX-License-Identifier: MIT
#include "tests/torch/fp8_support.h"

#include <octavo/backend.h>

namespace test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

#define OCTAVO_NEEDS_FP8                                                                             \
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";                                        \
  if (octavo::gpu_info().runtime_version == 0) GTEST_SKIP() << "this build has no CUDA backend";     \
  if (const std::string why = fp8::why_unsupported(torch::Device(torch::kCUDA, 0), 0); !why.empty()) \
  GTEST_SKIP() << why

const torch::Device kGpu(torch::kCUDA, 0);

TEST(TorchCuda, Fp8ProductsAreWithinTheBound) {
  OCTAVO_NEEDS_FP8;
  for (const char* recipe : {"current", "delayed", "rowwise", "block"}) {
    for (const char* format : {"hybrid", "e4m3", "e5m2"}) {
      for (const bool transposed : {true, false}) {
        for (const std::int64_t tokens : {256, 100}) {
          Operands operands({tokens, 256},
                            transposed ? at::IntArrayRef({256, 384}) : at::IntArrayRef({384, 256}),
                            torch::kBFloat16, kGpu);
          const auto context = fp8::Context::make(always(recipe, format));
          const auto product = [&](const auto& x, const auto& w) {
            return context->matmul(x, transposed ? w : w.t());
          };
          if (std::string(recipe) == "delayed") {
            operands.run(product);
            context->step_done();
          }
          operands.run(product);
          operands.expect_within_bound(format, transposed ? "" : "t", std::string(recipe) + " " + format);
        }
      }
    }
  }
}

TEST(TorchCuda, Fp8Groups) {
  OCTAVO_NEEDS_FP8;
  for (const fp8::Shared shared : {fp8::Shared{}, fp8::Shared{true, false}, fp8::Shared{false, true}}) {
    for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
      const at::DimVector x = shared.one_input ? at::DimVector{128, 64} : at::DimVector{3, 128, 64};
      Operands batch(x, {3, 64, 96}, type, kGpu);
      const auto context = fp8::Context::make(always("current"));
      batch.run([&](const auto& a, const auto& b) { return context->matmul_batched(a, b, shared); });
      batch.expect_within_bound("hybrid", shared.one_output ? "sum" : "", c10::toString(type));
    }
  }
}

TEST(TorchCuda, Fp8ScalesAreTheReferences) {
  OCTAVO_NEEDS_FP8;
  const Reference on;
  std::vector<fp8::State> states;
  for (const torch::Device& device : {torch::Device(torch::kCPU), kGpu}) {
    Operands operands({48, 64}, {64, 32}, torch::kBFloat16, device);
    const torch::Tensor dy =
        torch::arange(48 * 32).view({48, 32}).to(operands.w.options().requires_grad(false));
    const auto context = fp8::Context::make(always());
    context->add("w", operands.w);
    for (int step = 1; step <= 4; ++step) {
      for (int pass = 0; pass < 2; ++pass)
        context->matmul(operands.x * step, operands.w).backward(dy * (pass + step));
      EXPECT_EQ(context->weight_casts(), step);
      if (step == 2)
        context->step_done(torch::ones({}, torch::TensorOptions(torch::kUInt8).device(device)));
      else
        context->step_done();
    }
    states.push_back(context->state());
  }
  EXPECT_TRUE(same_bits(states[0].tensors.at(0).second, states[1].tensors.at(0).second));
}

// Autocast has sums in fp32 on a GPU; those over groups are of the product's dtype whatever is chosen.
TEST(TorchCuda, Fp8SumsOverGroupsUnderAutocast) {
  OCTAVO_NEEDS_FP8;
  fp8::Options options = always("current");
  options.select = "measure";
  fp8::Shape shape;
  shape.groups = 3, shape.tokens = 128, shape.inputs = 64, shape.outputs = 96;
  shape.shared.one_output = true, shape.y = torch::kBFloat16;
  for (std::uint32_t passes = 1; passes <= fp8::kAllPasses; ++passes) {
    Operands batch({3, 128, 64}, {3, 64, 96}, torch::kFloat32, kGpu);
    fp8::Decision decision;
    decision.shape = fp8::ShapeKey(shape), decision.passes = passes;
    const auto context = fp8::Context::make(options);
    context->adopt({decision.saved()});
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, torch::kBFloat16);
    const torch::Tensor y = context->matmul_batched(batch.x, batch.w, {false, true});
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16) << passes;
    y.sum().backward();
    EXPECT_EQ(context->decisions().size(), 1U) << "the choice that was given";
    EXPECT_EQ(batch.w.grad().scalar_type(), torch::kFloat32) << passes;
  }
}

TEST(TorchCuda, Fp8ChoicesByTime) {
  OCTAVO_NEEDS_FP8;
  fp8::Options options = always();
  options.select = "measure";
  Operands operands({512, 256}, {256, 512}, torch::kBFloat16, kGpu);
  const auto context = fp8::Context::make(options);
  context->add("w", operands.w);
  std::vector<std::string> lines;
  context->set_log([&](const std::string& line) { lines.push_back(line); });
  const auto product = [&](const auto& x, const auto& w) { return context->matmul(x, w); };
  operands.run(product);
  operands.run(product);
  ASSERT_EQ(context->decisions().size(), 1U) << "measured once";
  const octavo_fp8_times times = context->decisions()[0].times;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GT(times.plain[i], 0.0) << i;
    EXPECT_GT(times.fp8[i], 0.0) << i;
    EXPECT_GT(times.cast[i], 0.0) << i;
    EXPECT_GT(times.cast_two[i], 0.0) << i;
  }
  std::uint32_t fastest = 8;
  ASSERT_EQ(octavo_fp8_fastest(&times, &fastest), 0U);
  EXPECT_EQ(context->decisions()[0].passes, fastest);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("[up to 512 tokens, 256] with [256, 512]: forward "));

  // Every choice gives gradients that fit, and a resumed run makes it again without measuring.
  fp8::Decision decision = context->decisions()[0];
  for (std::uint32_t passes = 0; passes <= fp8::kAllPasses; ++passes) {
    decision.passes = passes;
    const auto resumed = fp8::Context::make(options);
    resumed->add("w", operands.w);
    fp8::State state = context->state();
    state.decisions = {decision.saved()};
    resumed->load(state);
    resumed->set_log([&](const std::string& line) { ADD_FAILURE() << line; });
    operands.run([&](const auto& x, const auto& w) { return resumed->matmul(x, w); });
    const torch::Tensor plain = operands.x.matmul(operands.w);
    const auto grads = torch::autograd::grad({plain}, {operands.x, operands.w}, {operands.dy});
    const auto near = [](const torch::Tensor& a, const torch::Tensor& b) {
      return (a - b).to(torch::kFloat32).norm().item<double>() / b.to(torch::kFloat32).norm().item<double>();
    };
    EXPECT_EQ(near(operands.y, plain) == 0.0, (passes & fp8::bit(fp8::kForward)) == 0) << passes;
    EXPECT_LT(near(operands.y, plain), 0.1) << passes;
    EXPECT_LT(near(operands.x.grad(), grads[0]), 0.1) << passes;
    EXPECT_LT(near(operands.w.grad(), grads[1]), 0.1) << passes;
  }
  // A rank that does not measure.
  const auto told = fp8::Context::make(options);
  told->set_measuring(false);
  told->matmul(operands.x, operands.w);
  EXPECT_TRUE(told->decisions().empty());
}

}  // namespace
}  // namespace test
