// Tests states in host memory that pass through the GPU in batches: the bits of a CPU step on the complete
// tensors, for all sizes and all timings of the streams. The caller changes scalars and step counts in the
// GPU's memory immediately after the step.
// SPDX-License-Identifier: MIT
#include "tests/offload/streamed.h"

#include <octavo/offload.h>

#include <cuda_runtime_api.h>

#include <chrono>
#include <stdexcept>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;
using octavo::WeightStore;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

class CudaTarget final : public Target {
 public:
  CudaTarget() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~CudaTarget() override {
    (void)cudaDeviceSynchronize();
    for (void* data : device_) (void)cudaFree(data);
    (void)cudaStreamDestroy(stream_);
  }
  [[nodiscard]] octavo::Device device() const override { return {octavo::DeviceKind::cuda, 0}; }
  [[nodiscard]] std::unique_ptr<octavo::offload::DeviceQueues> queues() override {
    return std::move(octavo::offload::make_cuda_queues("[test]", 0).value());
  }
  [[nodiscard]] void* stream() override { return stream_; }
  // Allocates from large pieces, because cudaMalloc is slow.
  std::byte* allocate(std::int64_t bytes) override {
    const std::int64_t whole = (bytes + 511) / 256 * 256;
    if (left_ < whole) {
      left_ = std::max(whole, std::int64_t{64} << 20);
      void* data = nullptr;
      check(cudaMalloc(&data, static_cast<std::size_t>(left_)));
      device_.push_back(data);
      at_ = static_cast<std::byte*>(data);
    }
    left_ -= whole;
    return std::exchange(at_, at_ + whole);
  }
  std::byte* allocate_host(std::int64_t bytes) override {
    auto memory = octavo::HostMemory::allocate(std::max<std::int64_t>(bytes, 1));
    EXPECT_TRUE(memory->pinned()) << memory->why_not();
    return host_.emplace_back(std::move(*memory)).data();
  }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_));
    check(cudaStreamSynchronize(stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<void*> device_;
  std::vector<octavo::HostMemory> host_;
  std::byte* at_ = nullptr;
  std::int64_t left_ = 0;
};

class StreamedCuda : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    target.emplace();
  }
  std::optional<CudaTarget> target;
};

TEST_F(StreamedCuda, EveryFormatStoreAndGradientHasTheBitsOfTheCpu) {
  const OptimizerCase adamw = optimizers(false)[2];  // with amsgrad: three moments
  std::size_t turn = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      for (const DType grad : octavo::all_dtypes()) {
        const auto kind = static_cast<Streamed::Kind>(turn++ % 4);
        ASSERT_EQ(streamed_difference(*target, adamw, streamed_specs(format, store, grad), kind), "")
            << octavo::name(format) << ", " << store.name << ", " << octavo::name(grad) << ", "
            << static_cast<int>(kind);
      }
    }
  }
}

TEST_F(StreamedCuda, EveryRuleWithEveryFormat) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      ASSERT_EQ(streamed_difference(
                    *target, optimizer,
                    streamed_specs(format, {"bf16", DType::bf16, WeightStore::stochastic}, DType::bf16),
                    Streamed::Kind::slab),
                "")
          << optimizer.name << ", " << octavo::name(format);
    }
  }
}

TEST_F(StreamedCuda, DelaysOfAnySeedChangeNothing) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (int seed = 0; seed < 12; ++seed) {
    const Delays delays(std::to_string(seed) + ":500");
    const auto kind = static_cast<Streamed::Kind>(seed % 4);
    ASSERT_EQ(
        streamed_difference(*target, adamw, streamed_specs(StateFormat::int8, stores()[0], DType::f32), kind),
        "")
        << seed;
  }
}

TEST_F(StreamedCuda, LargeTensorsInManyPieces) {
  const OptimizerCase adamw = optimizers(false)[1];
  std::vector<TensorSpec> list;
  for (const std::int64_t numel : {9'000'003, 1'000'000, 2'097'152})
    list.push_back(tensor_spec(numel, DType::bf16, DType::bf16, WeightStore::residual16, StateFormat::int8));
  ASSERT_EQ(streamed_difference(*target, adamw, list, Streamed::Kind::slab,
                                {std::int64_t{8} << 20, std::int64_t{16} << 20}),
            "");
}

TEST_F(StreamedCuda, StepsShareMemoryAndStates) {
  for (int seed = 0; seed < 12; ++seed) {
    const Delays delays(300, 20 + seed);
    ASSERT_EQ(shared_difference(*target, Streamed::Kind::slab, seed), "") << seed;
  }
}

// The caller's values in the GPU's memory.
struct Values {
  float lr = 0.01F;
  float loss_scale = 4.0F;
  float found_inf = 0.0F;
  octavo::GradNorm norm{9.0, 1.0F, 0};
  std::int64_t step = 6, other = 6;
  octavo::StepReport report{};
};

octavo::StepScalars scalars_at(Values& values) {
  return {&values.lr, &values.step, &values.loss_scale, &values.found_inf, &values.norm, &values.report};
}

// The queues are delayed, while the caller has written other scalars in its own order.
TEST_F(StreamedCuda, ScalarsAreThoseOfTheCallersStream) {
  const OptimizerCase adamw = optimizers(false)[1];
  auto* const stream = static_cast<cudaStream_t>(target->stream());
  for (int seed = 0; seed < 8; ++seed) {
    const Delays delays(std::to_string(40 + seed) + ":400");
    TensorSet expected(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
    auto& there = *reinterpret_cast<Values*>(target->allocate(sizeof(Values)));
    Values here;
    target->copy(&there, &here, sizeof here);
    std::int64_t* const others[] = {&there.other};
    Streamed got(*target, expected, kTightSizes, Streamed::Kind::slab, others);
    for (int i = 0; i < 4; ++i) {
      const float found_inf = i == 1 ? 1.0F : 0.0F;
      const octavo::GradNorm norm{9.0 + i, 1.0F, i == 2 ? 5 : 0};
      const float lr = 0.01F / static_cast<float>(i + 1);
      Values now = here;
      now.lr = lr;
      now.found_inf = found_inf;
      now.norm = norm;
      octavo::StepArgs args = step_args(adamw, 0);
      args.clip_grad_norm = 1.0;
      args.skip_nonfinite = true;
      args.scalars = scalars_at(now);
      ASSERT_TRUE(expected.step(args).ok());
      here.step = now.step;
      const auto write = [&](void* to, const void* from, std::size_t bytes) {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
      };
      write(&there.lr, &lr, 4);
      write(&there.found_inf, &found_inf, 4);
      write(&there.norm, &norm, sizeof norm);
      args.scalars = scalars_at(there);
      const auto report = got.step(args);
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_TRUE(report->pending);
      // These writes are in the caller's order, before the step has run.
      check(cudaMemsetAsync(&there.lr, 0x7F, 4, stream));
      check(cudaMemsetAsync(&there.found_inf, 0x7F, 4, stream));
      check(cudaMemsetAsync(&there.norm, 0x7F, sizeof norm, stream));
      got.wait();
      Values after;
      target->copy(&after, &there, sizeof after);
      EXPECT_EQ(after.step, here.step) << seed << " " << i;
      EXPECT_EQ(after.other, here.step);
      EXPECT_EQ(after.report.skipped, i == 1 || i == 2);
      EXPECT_EQ(after.report.nonfinite, i == 2 ? 5 : 0);
    }
    EXPECT_EQ(here.step, 8);
    EXPECT_EQ(got.difference(expected), "") << seed;
  }
}

// The caller's stream, ordered after the fence, may use a gradient's memory and read a weight.
TEST_F(StreamedCuda, PromisesOrderTheCallersStream) {
  const OptimizerCase adamw = optimizers(false)[1];
  auto* const stream = static_cast<cudaStream_t>(target->stream());
  for (const auto kind : {Streamed::Kind::slab, Streamed::Kind::held}) {
    const Delays delays("61:2000");
    TensorSet expected(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
    Streamed got(*target, expected, kTightSizes, kind);
    octavo::StepArgs args = step_args(adamw, 1);
    ASSERT_TRUE(expected.step(args).ok());
    ASSERT_TRUE(got.step(args).ok());
    const auto order = [&](const octavo::offload::PendingFence& pending) {
      return octavo::offload::order_stream_after(got.queues(), stream, pending);
    };
    for (std::size_t i = 0; i < expected.tensors().size(); ++i) {
      const auto bytes = static_cast<std::size_t>(expected.tensors()[i].grad.size());
      ASSERT_TRUE(order(got.fences(i).gradient).ok());
      check(cudaMemsetAsync(got.device_grad(i), 0x3F, bytes, stream));
      ASSERT_TRUE(order(got.fences(i).weight).ok());
      EXPECT_EQ(got.weight_difference(i, expected, Streamed::When::ordered), "") << i;
    }
    EXPECT_EQ(got.difference(expected), "");
  }
}

TEST(StreamedCudaMemory, OneCopyReachesAsFarAsItsAllocation) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  CudaTarget target;
  const auto queues = target.queues();
  const std::byte* const one = target.allocate_host(1 << 20);
  const std::byte* const other = target.allocate_host(1 << 20);
  EXPECT_TRUE(queues->in_one_allocation(one, one + (1 << 20) - 1));
  EXPECT_FALSE(queues->in_one_allocation(one, other));
  EXPECT_FALSE(queues->in_one_allocation(one, &count));
  void* own = nullptr;
  check(cudaMallocHost(&own, 8192));
  EXPECT_TRUE(queues->in_one_allocation(own, static_cast<std::byte*>(own) + 8191));
  check(cudaFreeHost(own));
}

}  // namespace
}  // namespace test
