// The engine's C ABI: the bytes of the C++ API, struct sizes, null arguments; and what a new set of gradients
// costs.
// SPDX-License-Identifier: MIT
#include "tests/engine/engine_set.h"
#include "tests/support/c_structs.h"

#include <octavo/octavo.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>

namespace test {
namespace {

using octavo::StateFormat;

octavo_engine_tensor c_engine_tensor(const octavo::engine::EngineTensor& t) {
  octavo_engine_tensor c = c_tensor(t.tensor, t.step);
  c.group = t.group;
  c.norm_part = t.part;
  c.whole_numel = t.whole_numel;
  c.residence = static_cast<uint32_t>(t.residence);
  c.held_in_fp32 = t.held_in_fp32 ? 1 : 0;
  return c;
}

struct CEngine {
  explicit CEngine(octavo::Algorithm algorithm) {
    EXPECT_EQ(octavo_engine_create(static_cast<uint32_t>(algorithm), &engine), 0U);
  }
  ~CEngine() { octavo_engine_destroy(engine); }
  CEngine(const CEngine&) = delete;
  CEngine& operator=(const CEngine&) = delete;
  octavo_engine* engine = nullptr;
};

TEST(EngineC, SameBytesAsCpp) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    SCOPED_TRACE(optimizer.name);
    TensorSet tensors(optimizer.config, mixed_specs(StateFormat::int8), 7);
    for (TensorBuffers& t : tensors.tensors()) t.offset = t.id * 64;
    EngineSet cpp(optimizer, tensors);
    EngineSet c(optimizer, tensors);  // its buffers and counts, stepped by the C functions
    cpp.options.clip_grad_norm = c.options.clip_grad_norm = 0.5;
    std::vector<octavo_engine_tensor> list;
    std::vector<octavo::engine::EngineTensor> same;
    for (const std::uint32_t handle : cpp.all()) {
      octavo::engine::EngineTensor one = c.tensor(handle);
      one.whole_numel = 1 << 20;
      list.push_back(c_engine_tensor(one));
      octavo::engine::EngineTensor other = cpp.tensor(handle);
      other.whole_numel = 1 << 20;
      same.push_back(other);
    }
    ASSERT_TRUE(cpp.engine.set_group(0, cpp.options).ok());
    ASSERT_TRUE(cpp.engine.set(cpp.all(), same).ok());
    cpp.device.norm = &cpp.norm;

    const CEngine own(optimizer.config.algorithm);
    octavo::StepArgs numbers;
    numbers.hyper = optimizer.hyper;
    numbers.seed = cpp.options.seed;
    numbers.clip_grad_norm = 0.5;
    const octavo_step_args options = c_step_args(numbers);
    ASSERT_EQ(octavo_engine_set_group(own.engine, 0, cpp.options.switches, &options, 0, 0), 0U);
    const Handles all = c.all();
    ASSERT_EQ(octavo_engine_set(own.engine, all.data(), list.data(), 5), 0U) << octavo_last_error();

    for (std::uint64_t step = 1; step <= 2; ++step) {
      cpp.set.fill_grads(step);
      c.set.fill_grads(step);
      ASSERT_TRUE(cpp.begin({0, 1, 3}, true).ok());
      ASSERT_TRUE(
          cpp.engine.norm(cpp.args(), std::vector<octavo::engine::EngineNormPart>{{{}, 0, &cpp.norm}}).ok());
      ASSERT_TRUE(cpp.engine.step(cpp.args()).ok());

      const Handles active = {0, 1, 3};
      std::vector<const void*> grads;
      std::vector<uint8_t> dtypes;
      for (const std::uint32_t handle : active) {
        grads.push_back(c.set.tensors()[handle].grad.data());
        dtypes.push_back(static_cast<uint8_t>(c.set.tensors()[handle].spec.grad_dtype));
      }
      auto plan = sized<octavo_engine_plan>();
      ASSERT_EQ(octavo_engine_begin(own.engine, active.data(), grads.data(), dtypes.data(), 3, 1, &plan), 0U);
      EXPECT_EQ(plan.fresh, step == 1 ? 1U : 0U);
      EXPECT_EQ(plan.cohorts, 1);
      const Buffer workspace(octavo_engine_workspace_bytes(own.engine, 0, 0));
      auto device = sized<octavo_engine_device>();
      octavo_device_norm norm{};
      device.workspace = workspace.data();
      device.workspace_bytes = workspace.size();
      device.norm = &norm;
      auto args = sized<octavo_engine_args>();
      args.devices = &device;
      args.device_count = 1;
      auto part = sized<octavo_engine_norm_part>();
      part.out = &norm;
      ASSERT_EQ(octavo_engine_norm(own.engine, &args, &part, 1, nullptr, nullptr), 0U) << octavo_last_error();
      auto report = sized<octavo_step_report>();
      ASSERT_EQ(octavo_engine_step(own.engine, &args, &report), 0U) << octavo_last_error();
      EXPECT_EQ(report.skipped, 0U);
      EXPECT_EQ(norm.l2, cpp.norm.l2);
      ASSERT_EQ(c.set.difference(cpp.set), "");
      ASSERT_EQ(c.counts, cpp.counts);
    }
    EXPECT_EQ(octavo_engine_remove(own.engine, all.data(), 5), 0U);
    EXPECT_EQ(octavo_engine_begin(own.engine, all.data(), nullptr, nullptr, 0, 0, nullptr), 0U);
  }
}

// Every function of offload once: a gradient that is taken twice and one that is not, a deferred step.
TEST(EngineC, Offload) {
  const OptimizerCase optimizer = optimizers(false)[0];
  EngineSet c(optimizer, {optimizer.config, mixed_specs(StateFormat::int8), 7});
  TensorSet expected = c.set;
  c.residences = {octavo::Residence::host, octavo::Residence::stream};
  const CEngine own(optimizer.config.algorithm);
  octavo::StepArgs numbers;
  numbers.hyper = optimizer.hyper;
  numbers.seed = c.options.seed;
  const octavo_step_args options = c_step_args(numbers);
  ASSERT_EQ(octavo_engine_set_group(own.engine, 0, c.options.switches, &options, 0, 0), 0U);
  const Handles two = {0, 1};
  const std::array<octavo_engine_tensor, 2> list = {c_engine_tensor(c.tensor(0)),
                                                    c_engine_tensor(c.tensor(1))};
  ASSERT_EQ(octavo_engine_set(own.engine, two.data(), list.data(), 2), 0U) << octavo_last_error();
  const Handles order = {1, 0};
  ASSERT_EQ(octavo_engine_set_order(own.engine, order.data(), 2), 0U);

  const std::array<const void*, 2> grads = {c.set.tensors()[0].grad.data(), c.set.tensors()[1].grad.data()};
  const std::array<uint8_t, 2> dtypes = {static_cast<uint8_t>(octavo::DType::f32),
                                         static_cast<uint8_t>(octavo::DType::f16)};
  for (int pass = 0; pass < 2; ++pass) {
    ASSERT_EQ(octavo_engine_take(own.engine, two.data(), grads.data(), dtypes.data(), 1, 0, 0, nullptr), 0U)
        << octavo_last_error();
  }
  EXPECT_EQ(octavo_engine_holds(own.engine, 0), 1U);
  EXPECT_EQ(octavo_engine_holds(own.engine, 1), 0U);
  ASSERT_EQ(octavo_engine_drop(own.engine, two.data(), 2), 0U);
  EXPECT_EQ(octavo_engine_holds(own.engine, 0), 0U);
  ASSERT_EQ(octavo_engine_take(own.engine, two.data(), grads.data(), dtypes.data(), 1, 0, 0, nullptr), 0U);
  const std::array<const void*, 2> given = {nullptr, grads[1]};
  ASSERT_EQ(octavo_engine_begin(own.engine, two.data(), given.data(), dtypes.data(), 2, 0, nullptr), 0U)
      << octavo_last_error();
  const Buffer workspace(octavo_engine_workspace_bytes(own.engine, 0, 0));
  const std::int64_t bytes = octavo_engine_staging_bytes(own.engine, 0, 0);
  void* staging = nullptr;
  uint32_t pinned = 0;
  ASSERT_EQ(octavo_host_alloc(bytes, 0, &staging, &pinned), 0U);
  auto device = sized<octavo_engine_device>();
  device.workspace = workspace.data();
  device.workspace_bytes = workspace.size();
  device.staging = staging;
  device.staging_bytes = bytes;
  auto args = sized<octavo_engine_args>();
  args.devices = &device;
  args.device_count = 1;
  args.defer = 1;
  ASSERT_EQ(octavo_engine_step(own.engine, &args, nullptr), 0U) << octavo_last_error();
  ASSERT_EQ(octavo_engine_wait(own.engine, nullptr, 0, 1, 0, 0, nullptr), 0U);
  ASSERT_EQ(octavo_engine_wait(own.engine, two.data(), 2, 0, 0, 0, nullptr), 0U);
  ASSERT_EQ(octavo_engine_synchronize(own.engine), 0U);
  step_alone(expected, 0, c.options, 1);
  step_alone(expected, 1, c.options, 1);
  EXPECT_EQ(c.set.difference(expected), "");
  EXPECT_EQ(c.counts[0] + c.counts[1], 2);
  EXPECT_GT(octavo_engine_host_bytes(own.engine), 0);

  // The copy in host memory has the weight of the step, and then that of the caller.
  auto* const weight = c.set.tensors()[0].param.as<float>();
  const float stepped = *weight;
  *weight = 5.0F;
  ASSERT_EQ(octavo_engine_refresh(own.engine, nullptr, 0, 1, 0, 0, nullptr), 0U);
  EXPECT_EQ(*weight, stepped);
  *weight = 5.0F;
  ASSERT_EQ(octavo_engine_refresh(own.engine, nullptr, 0, 0, 0, 0, nullptr), 0U);
  *weight = 7.0F;
  ASSERT_EQ(octavo_engine_refresh(own.engine, nullptr, 0, 1, 0, 0, nullptr), 0U);
  EXPECT_EQ(*weight, 5.0F);
  EXPECT_EQ(octavo_engine_wait(own.engine, nullptr, 0, 7, 0, 0, nullptr), 1U);
  EXPECT_EQ(octavo_engine_refresh(own.engine, nullptr, 0, 7, 0, 0, nullptr), 1U);
  ASSERT_EQ(octavo_engine_remove(own.engine, two.data(), 2), 0U);
  octavo_host_free(staging);
}

TEST(EngineC, BadArguments) {
  const CEngine own(octavo::Algorithm::adamw);
  const auto message = [] { return std::string(octavo_last_error()); };
  EXPECT_EQ(octavo_engine_create(0, nullptr), 1U);
  EXPECT_EQ(octavo_engine_set(nullptr, nullptr, nullptr, 0), 1U);
  EXPECT_EQ(message(), "[octavo] engine: got null");
  EXPECT_EQ(octavo_engine_set_group(own.engine, 0, 0, nullptr, 0, 0), 1U);
  EXPECT_EQ(octavo_engine_step(own.engine, nullptr, nullptr), 1U);
  octavo_engine_args args{};
  EXPECT_EQ(octavo_engine_step(own.engine, &args, nullptr), 1U);
  EXPECT_NE(message().find("args.struct_size: got 0"), std::string::npos);
  const uint32_t handle = 12;
  const void* grad = &args;
  const uint8_t dtype = 0;
  EXPECT_EQ(octavo_engine_begin(own.engine, &handle, &grad, &dtype, 1, 0, nullptr), 1U);
  EXPECT_EQ(octavo_engine_failed_tensor(own.engine), 12);
  EXPECT_EQ(octavo_engine_begin(own.engine, &handle, &grad, &dtype, -1, 0, nullptr), 1U);
  EXPECT_EQ(octavo_engine_failed_tensor(nullptr), -1);
  EXPECT_EQ(octavo_engine_workspace_bytes(nullptr, 0, 0), 0);
  octavo_engine_forget_ready(nullptr);
  octavo_engine_destroy(nullptr);

  std::array<octavo_engine_tensor, 2> tensors = {sized<octavo_engine_tensor>(),
                                                 sized<octavo_engine_tensor>()};
  tensors[1].struct_size = 8;
  const std::array<uint32_t, 2> handles = {0, 1};
  EXPECT_EQ(octavo_engine_set(own.engine, handles.data(), tensors.data(), 2), 1U);
  EXPECT_NE(message().find("tensors.struct_size: got 8"), std::string::npos);
  auto report = sized<octavo_step_report>();
  report.struct_size = 1;
  args.struct_size = sizeof args;
  EXPECT_EQ(octavo_engine_step(own.engine, &args, &report), 1U);
  EXPECT_NE(message().find("report.struct_size: got 1"), std::string::npos);

  uint32_t format = 77;
  EXPECT_EQ(octavo_format_for(2, 4095, 4096, 0, &format), 0U);
  EXPECT_EQ(format, 0U);
  EXPECT_EQ(octavo_format_for(4, 1 << 20, 4096, 1, &format), 1U);
  EXPECT_EQ(octavo_format_for(2, 1, 4096, 0, nullptr), 1U);
}

// Written to the log: what changes of the set of gradients cost. The limit is several times what it takes,
// for machines that do other things besides.
void time_sets(const char* name, std::size_t tensors, const std::function<Handles(std::mt19937&)>& choose) {
  const OptimizerCase optimizer = optimizers(false)[1];
  std::vector<octavo::TensorSpec> specs(
      tensors, tensor_spec(512, octavo::DType::bf16, octavo::DType::bf16, octavo::WeightStore::nearest,
                           StateFormat::int8));
  EngineSet own(optimizer, {optimizer.config, specs, 7});
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  auto start = Clock::now();
  ASSERT_TRUE(own.add(own.all()).ok());
  const double set = seconds(start);
  std::vector<const void*> grads(tensors);
  std::vector<octavo::DType> dtypes(tensors, octavo::DType::bf16);
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same sets every time
  double fresh = 1.0;
  double known = 1.0;
  std::int64_t cohorts = 0;
  for (int i = 0; i < 40; ++i) {
    const Handles active = choose(random);
    grads.clear();
    for (const std::uint32_t handle : active) grads.push_back(own.set.tensors()[handle].grad.data());
    const std::span<const octavo::DType> types = std::span(dtypes).first(active.size());
    start = Clock::now();
    auto plan = own.engine.begin(active, grads, types);
    ASSERT_TRUE(plan.ok() && plan->fresh);
    fresh = std::min(fresh, seconds(start));
    cohorts = std::max(cohorts, plan->cohorts);
    for (const void*& grad : grads) grad = static_cast<const std::byte*>(grad) + 2;  // as after zero_grad
    start = Clock::now();
    plan = own.engine.begin(active, grads, types);
    ASSERT_TRUE(plan.ok() && !plan->fresh);
    known = std::min(known, seconds(start));
    for (const std::uint32_t handle : active) ++own.counts[handle];
  }
  std::printf("%s: set %.0f us; a new set of gradients %.1f us (up to %lld cohorts), a known one %.1f us\n",
              name, set * 1e6, fresh * 1e6, static_cast<long long>(cohorts), known * 1e6);
  EXPECT_LT(fresh, quick() ? 0.1 : 5e-3);
  EXPECT_LT(known, quick() ? 0.1 : 1e-3);
}

TEST(EngineCost, NewSetsOfGradients) {
  const auto but_one = [](std::size_t tensors) {
    return [tensors, left_out = 0U](std::mt19937&) mutable {
      Handles handles(tensors);
      for (std::size_t i = 0; i < tensors; ++i) handles[i] = static_cast<std::uint32_t>(i);
      std::erase(handles, left_out++);
      return handles;
    };
  };
  time_sets("646 tensors", 646, but_one(646));
  time_sets("3072 tensors", 3072, but_one(3072));
  // 200 tensors that always have a gradient, 64 experts of three tensors, eight of them active.
  time_sets("64 experts", 200 + 64 * 3, [](std::mt19937& random) {
    Handles handles(200);
    for (std::size_t i = 0; i < handles.size(); ++i) handles[i] = static_cast<std::uint32_t>(i);
    std::vector<std::uint32_t> experts(64);
    for (std::uint32_t e = 0; e < 64; ++e) experts[e] = e;
    std::shuffle(experts.begin(), experts.end(), random);
    std::sort(experts.begin(), experts.begin() + 8);
    for (std::size_t e = 0; e < 8; ++e) {
      for (std::uint32_t k = 0; k < 3; ++k) handles.push_back(200 + 3 * experts[e] + k);
    }
    return handles;
  });
}

}  // namespace
}  // namespace test
