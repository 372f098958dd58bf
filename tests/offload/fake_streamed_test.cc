// What a streamed step does for a GPU, without one: scalars and step counts in device memory, and tables in
// the staging memory. The GPU's backend is that of engine/fake_gpu_test.cc, which notices tables that were
// overwritten; its streams are threads.
// SPDX-License-Identifier: MIT
#include "tests/offload/streamed.h"

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

class FakeTarget final : public Target {
 public:
  [[nodiscard]] octavo::Device device() const override { return {octavo::DeviceKind::cuda, 0}; }
  [[nodiscard]] std::unique_ptr<octavo::offload::DeviceQueues> queues() override { return threads_.queues(); }
  [[nodiscard]] void* stream() override { return nullptr; }
  std::byte* allocate(std::int64_t bytes) override { return threads_.allocate(bytes); }
  std::byte* allocate_host(std::int64_t bytes) override { return threads_.allocate_host(bytes); }
  void copy(void* to, const void* from, std::int64_t bytes) override { threads_.copy(to, from, bytes); }

 private:
  ThreadTarget threads_;
};

TEST(StreamedFakeGpu, CountsAndScalarsAreThoseOfTheCall) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (int seed = 0; seed < 2; ++seed) {
    FakeTarget target;
    const Delays delays(std::to_string(seed) + ":50");
    TensorSet expected(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
    std::int64_t count = 6;
    std::int64_t first = 6;
    std::int64_t second = 6;
    std::int64_t* const others[] = {&second};
    Streamed got(target, expected, kTightSizes, Streamed::Kind::slab, others);
    std::array<octavo::StepReport, octavo::offload::Staging::kScalarSlots + 5> reports{};  // one more round
    for (std::size_t i = 0; i < reports.size(); ++i) {
      float lr = 0.01F / static_cast<float>(i + 1);
      float loss_scale = 4.0F;
      float found_inf = i % 7 == 1 ? 1.0F : 0.0F;
      octavo::GradNorm norm{9.0 + static_cast<double>(i), 1.0F, i % 7 == 2 ? 5 : 0};
      octavo::StepArgs args = step_args(adamw, 0);
      args.scalars = {&lr, &count, &loss_scale, &found_inf, &norm, nullptr};
      args.clip_grad_norm = 1.0;
      args.skip_nonfinite = true;
      args.threads = 1;
      ASSERT_TRUE(expected.step(args).ok());
      args.scalars.step = &first;
      args.scalars.report = &reports[i];
      const auto said = got.step(args);
      ASSERT_TRUE(said.ok()) << said.status().message();
      EXPECT_TRUE(said->pending);
      lr = loss_scale = found_inf = 77.0F;  // while the step is under way
      norm = {1e9, 0.0F, 5};
    }
    EXPECT_EQ(got.difference(expected), "") << seed;
    EXPECT_EQ(first, count);
    EXPECT_EQ(second, count);
    EXPECT_EQ(count, 6 + 186);
    for (std::size_t i = 0; i < reports.size(); ++i)
      EXPECT_EQ(reports[i].skipped, i % 7 == 1 || i % 7 == 2) << i;
  }
}

TEST(StreamedFakeGpu, TablesAreThereWhenTheyAreRead) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (int seed = 0; seed < 8; ++seed) {
    FakeTarget target;
    const Delays delays(std::to_string(20 + seed) + ":100");
    TensorSet expected(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
    Streamed got(target, expected, kTightSizes, Streamed::Kind::apart);
    for (std::int64_t step = 1; step <= 6; ++step) {
      octavo::StepArgs args = step_args(adamw, step);
      ASSERT_TRUE(expected.step(args).ok());
      if (step % 3 != 0) {
        ASSERT_TRUE(got.step(args).ok());
        continue;
      }
      for (const std::vector<std::size_t>& part : {std::vector<std::size_t>{4}, {0, 1, 2}, {3, 5}})
        ASSERT_TRUE(got.step_some(part, args).ok());
    }
    ASSERT_EQ(got.difference(expected), "") << seed;
  }
}

}  // namespace
}  // namespace test
