// Scalars that a device reads, and CUDA graphs of the LibTorch adapter. On the CPU capturable changes
// nothing.
// SPDX-License-Identifier: MIT
#include "tests/torch/support.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <octavo/backend.h>

namespace test {
namespace {

using octavo::torch::AdamW;
using octavo::torch::SGD;
using testing::HasSubstr;

TEST(TorchScalars, FoundInfSkipsTheStep) {
  const Tensors params = make_params(), plain = copies(params);
  AdamW optimizer(params, AdamWOptions(1e-2)), reference(plain, AdamWOptions(1e-2));
  const torch::Tensor found = torch::zeros({1});
  optimizer.set_found_inf(found);
  run(optimizer, params, 1, 1);
  run(reference, plain, 1, 1);
  EXPECT_TRUE(same_bits(params, plain));
  found.fill_(1);
  run(optimizer, params, 2, 2);
  EXPECT_TRUE(same_bits(params, plain));
  EXPECT_EQ(optimizer.state_of(params[0])->step(), 1);
  found.fill_(0);
  run(optimizer, params, 3, 3);
  run(reference, plain, 3, 3);
  EXPECT_TRUE(same_bits(params, plain));
}

TEST(TorchScalars, LearningRateOnTheDevice) {
  const Tensors params = make_params(), plain = copies(params);
  SGD optimizer(std::vector<ParamGroup>{ParamGroup({params[0]}), ParamGroup({params[1]})}, SGDOptions(0.5));
  SGD reference(plain, SGDOptions(0.25));
  const torch::Tensor rate = torch::full({1}, 0.25);
  optimizer.set_lr(0, rate);
  optimizer.set_lr(1, rate);
  run(optimizer, params, 1, 1);
  run(reference, plain, 1, 1);
  EXPECT_TRUE(same_bits(params, plain));
  rate.fill_(0.5);
  static_cast<SGDOptions&>(reference.param_groups()[0].options()).lr(0.5);
  run(optimizer, params, 2, 2);
  optimizer.set_lr(0, {});
  optimizer.set_lr(1, {});
  run(optimizer, params, 3, 3);
  run(reference, plain, 2, 3);
  EXPECT_TRUE(same_bits(params, plain));
  EXPECT_THAT(error_of([&] { optimizer.set_lr(2, rate); }), HasSubstr("got group 2, expected one of 2"));
  EXPECT_THAT(error_of([&] { optimizer.set_lr(0, torch::ones({2})); }), HasSubstr("lr: got 2 of Float"));
}

TEST(TorchGraph, CapturableHasTheSameBits) {
  const Tensors params = make_params(), plain = copies(params);
  const auto options = AdamWOptions(1e-2).state("8bit").clip_grad_norm(0.5);
  AdamW optimizer(params, AdamWOptions(options).capturable(true)), reference(plain, options);
  run(optimizer, params, 1, 3);
  run(reference, plain, 1, 3);
  EXPECT_TRUE(same_bits(params, plain));
  EXPECT_TRUE(same_bits(states(optimizer), states(reference)));
}

// The CUDA runtime that LibTorch has loaded: the tests build against CPU wheels, too.
template <class... Args>
void cuda(const char* name, Args... args) {
  const auto call = reinterpret_cast<int (*)(Args...)>(dlsym(RTLD_DEFAULT, name));
  ASSERT_NE(call, nullptr) << name;
  ASSERT_EQ(call(args...), 0) << name;
}

TEST(TorchCuda, AGraphOfTheStep) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  if (octavo::gpu_info().runtime_version == 0) GTEST_SKIP() << "this build has no CUDA backend";
  Tensors params;
  for (const torch::Tensor& p : make_params()) params.push_back(p.detach().to(torch::kCUDA).requires_grad_());
  const Tensors plain = copies(params), others = copies(params);
  const auto options = AdamWOptions(1e-2).state("8bit").clip_grad_norm(0.5).skip_nonfinite(true);
  AdamW optimizer(params, AdamWOptions(options).capturable(true)), reference(plain, options);
  AdamW not_capturable(others, options);
  const torch::Tensor rate = torch::full({1}, 1e-2, torch::kCUDA);
  optimizer.set_lr(0, rate);
  run(optimizer, params, 1, 1);  // states and workspaces are made outside of the graph
  run(reference, plain, 1, 1);
  run(not_capturable, others, 1, 1);

  const auto* impl = c10::impl::getDeviceGuardImpl(torch::kCUDA);
  const c10::Stream stream = impl->getStreamFromGlobalPool(params[0].device());
  torch::cuda::synchronize();
  void *graph = nullptr, *executable = nullptr;
  {
    const c10::StreamGuard guard(stream);
    void* handle = octavo::torch::native::handle_of(std::optional<c10::Stream>(stream));
    cuda("cudaStreamBeginCapture", handle, 2);  // relaxed
    optimizer.step();
    EXPECT_THAT(error_of([&] { not_capturable.step(); }), HasSubstr("needs capturable(true)"));
    cuda("cudaStreamEndCapture", handle, &graph);
    cuda("cudaGraphInstantiate", &executable, graph, 0ULL);
    for (std::int64_t step = 2; step <= 4; ++step) {
      for (std::size_t i = 0; i < params.size(); ++i) {
        const auto seed = 10 * step + static_cast<std::int64_t>(i);
        params[i].mutable_grad().copy_(gradient(params[i], seed));  // in place: the graph has their addresses
      }
      if (step == 3) rate.fill_(5e-3);
      cuda("cudaGraphLaunch", executable, handle);
    }
  }
  torch::cuda::synchronize();
  for (std::int64_t step = 2; step <= 4; ++step) {
    if (step == 3) static_cast<AdamWOptions&>(reference.param_groups()[0].options()).lr(5e-3);
    run(reference, plain, step, step);
  }
  EXPECT_TRUE(same_bits(params, plain));
  EXPECT_TRUE(same_bits(states(optimizer), states(reference)));
  EXPECT_EQ(optimizer.state_of(params[0])->step(), 4);
  cuda("cudaGraphExecDestroy", executable);
  cuda("cudaGraphDestroy", graph);
}

}  // namespace
}  // namespace test
