// The step on the CPU in jobs of some tensors each: bits, counts, the order of tensors, and who is free when.
// SPDX-License-Identifier: MIT
#include "tests/offload/streamed.h"

namespace test {
namespace {

using octavo::StateFormat;
using octavo::offload::Fence;
using octavo::offload::OffloadedStep;
using octavo::offload::StepTensor;
using octavo::offload::TensorFences;

std::vector<octavo::TensorSpec> host_specs(StateFormat format) {
  using octavo::DType;
  using octavo::WeightStore;
  std::vector<octavo::TensorSpec> list = {
      tensor_spec(900, DType::f32, DType::f32, WeightStore::nearest, format),
      tensor_spec(0, DType::f32, DType::f32, WeightStore::nearest, format),
      tensor_spec(64 * 20, DType::bf16, DType::bf16, WeightStore::residual16, format),
      tensor_spec(33, DType::f16, DType::f16, WeightStore::nearest, format),
      tensor_spec(500, DType::bf16, DType::f32, WeightStore::stochastic, StateFormat::fp32)};
  give_shape(list[2]);
  return list;
}

struct HostSteps {
  HostSteps(const OptimizerCase& optimizer, StateFormat format, std::int64_t job,
            const std::vector<std::uint32_t>& order)
      : own(optimizer.config, host_specs(format), 7),
        expected(own),
        counts(own.tensors().size()),
        queues(octavo::offload::make_cpu_queues()) {
    std::vector<StepTensor> tensors(counts.size());
    std::vector<std::int64_t*> at;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      copies.push_back(own.tensors()[i].param);
      tensors[i].args = own.tensors()[i].args();
      tensors[i].host_param = copies[i].data();
      tensors[i].order = order[i];
      at.push_back(&counts[i]);
    }
    auto made = octavo::offload::make_host_step(optimizer.config, tensors, *queues, at, job);
    EXPECT_TRUE(made.ok()) << made.status().message();
    backend = std::move(*made);
  }

  void queue(octavo::StepArgs args, std::span<const Fence> complete) {
    own.fill_grads(++seed);
    expected.fill_grads(seed);
    std::vector<octavo::offload::StepGrad> grads;
    for (const TensorBuffers& t : own.tensors()) grads.push_back({t.grad.data(), true, {}});
    for (std::size_t i = 0; i < complete.size(); ++i) grads[i].complete = complete[i];
    const auto queued = backend->step({args, grads});
    ASSERT_TRUE(queued.ok()) << queued.status().message();
    fences = queued->tensors;
  }
  // Until the weight is up to date.
  void wait(std::size_t i) const {
    const octavo::offload::PendingFence pending = fences[i].weight;
    ASSERT_TRUE(pending.queued.wait().ok());
    ASSERT_NE(pending.fence, nullptr);
    ASSERT_TRUE(pending.fence->wait().ok());
    ASSERT_TRUE(fences[i].gradient.queued.passed());
  }

  TensorSet own, expected;
  std::vector<std::int64_t> counts;
  std::vector<Buffer> copies;
  std::unique_ptr<octavo::offload::DeviceQueues> queues;
  std::unique_ptr<OffloadedStep> backend;
  std::vector<TensorFences> fences;
  std::uint64_t seed = 0;
};

TEST(HostStep, JobsOfAnySize) {
  const Delays delays("3:100");
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : {StateFormat::int8, StateFormat::int4_rank1}) {
      for (const std::int64_t job : {1, 1000, 1 << 20}) {
        SCOPED_TRACE(std::string(optimizer.name) + " " + std::to_string(job));
        HostSteps both(optimizer, format, job, {3, 0, 4, 1, 2});
        std::int64_t steps = 0;
        for (const float found_inf : {0.0F, 1.0F, 0.0F}) {
          octavo::StepArgs args = step_args(optimizer, 1);
          args.scalars.found_inf = &found_inf;
          both.queue(args, {});
          for (std::size_t i = 0; i < both.counts.size(); ++i) both.wait(i);
          if (testing::Test::HasFatalFailure()) return;
          if (found_inf == 0.0F) {
            ASSERT_TRUE(both.expected.step(step_args(optimizer, ++steps)).ok());
          }
          ASSERT_EQ(both.own.difference(both.expected), "");
          ASSERT_EQ(both.counts, std::vector<std::int64_t>(5, steps));
        }
      }
    }
  }
}

// The first tensors of the order are done while the last one waits for its gradient; and what is under way
// outlives the step that has queued it.
TEST(HostStep, OrderAndEnd) {
  const OptimizerCase optimizer = optimizers(false)[0];
  HostSteps both(optimizer, StateFormat::int8, 1, {4, 3, 2, 1, 0});
  std::promise<void> gate;
  const std::shared_future<void> opened(gate.get_future());
  const auto other = octavo::offload::make_cpu_queues();
  const auto hold = [opened](void* /*stream*/) {
    opened.wait();
    return octavo::Status();
  };
  ASSERT_TRUE(other->host().run(hold, "gate").ok());
  std::vector<Fence> complete(5);
  complete[0] = other->host().record_fence().value();
  both.queue(step_args(optimizer, 1), complete);
  for (const std::size_t i : {4, 3, 2, 1}) both.wait(i);
  const octavo::offload::PendingFence last = both.fences[0].weight;
  EXPECT_FALSE(last.queued.passed());
  EXPECT_EQ(both.counts, (std::vector<std::int64_t>{0, 1, 1, 1, 1}));
  both.backend = nullptr;
  gate.set_value();
  ASSERT_TRUE(last.queued.wait().ok());
  ASSERT_TRUE(last.fence->wait().ok());
  ASSERT_TRUE(both.expected.step(step_args(optimizer, 1)).ok());
  EXPECT_EQ(both.own.difference(both.expected), "");
  EXPECT_EQ(both.counts[0], 1);
}

}  // namespace
}  // namespace test
