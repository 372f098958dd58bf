// A few thousand elements of every case, with each buffer in its own allocation of the exact size: for
// compute-sanitizer, which takes fifty times as long (--gtest_filter='Small*').
// SPDX-License-Identifier: MIT
#include "optimizers/norm_group.h"
#include "tests/cuda/device.h"

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

class SmallCuda : public GpuTest {};

TEST_F(SmallCuda, StepsEqualTheCpu) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      const std::vector<StoreCase> all = stores();
      const StoreCase& store = all[combination++ % all.size()];
      const DType grad = octavo::all_dtypes()[combination % 3];
      std::vector<TensorSpec> specs;
      for (const std::int64_t numel : {0, 1, 31, 257, 512, 1030}) {
        specs.push_back(tensor_spec(numel, store.dtype, grad, store.store, format));
        if (numel != 257) give_shape(specs.back());
      }
      const TensorSet set(optimizer.config, specs, combination);
      octavo::StepArgs args = step_args(optimizer, 1);
      args.skip_nonfinite = combination % 2 == 0;
      Race race(set, stream, Memory::apart);
      const Grads kinds[] = {Grads::dense, Grads::dense, Grads::mixed};
      std::string difference = race.steps(args, kinds);
      args.skip_nonfinite = false;
      args.step = 4;
      if (difference.empty()) difference = race.step(args, Grads::special, 4);
      tally.add(std::string(optimizer.name) + ", " + std::string(octavo::name(format)) + ", " + store.name,
                difference);
    }
  }
}

TEST_F(SmallCuda, EveryStore) {
  const Stream stream;
  Tally tally;
  const OptimizerCase adamw = optimizers(false)[1];
  for (const StoreCase& store : stores()) {
    std::vector<TensorSpec> specs;
    for (const StateFormat format : octavo::all_state_formats()) {
      specs.push_back(tensor_spec(1030, store.dtype, store.dtype, store.store, format));
      give_shape(specs.back());
    }
    const TensorSet set(adamw.config, specs, 4);
    Race race(set, stream, Memory::apart);
    const Grads kinds[] = {Grads::dense, Grads::dense};
    tally.add(store.name, race.steps(step_args(adamw, 1), kinds));
  }
}

TEST_F(SmallCuda, LargeBlocks) {
  const Stream stream;
  Tally tally;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    std::vector<TensorSpec> specs;
    for (const StateFormat format : octavo::all_state_formats()) {
      for (const std::int64_t block : {32, 512, 1024, 4096}) {
        if (!has_blocks(format)) continue;
        specs.push_back(
            tensor_spec(1100, DType::bf16, DType::bf16, octavo::WeightStore::nearest, format, block));
        give_shape(specs.back());
      }
    }
    const TensorSet set(optimizer.config, specs, 4);
    Race race(set, stream, Memory::apart);
    const Grads kinds[] = {Grads::dense, Grads::mixed};
    tally.add(optimizer.name, race.steps(step_args(optimizer, 1), kinds));
  }
}

// Gradients from every offset in a bucket: nothing around them is read.
TEST_F(SmallCuda, Buckets) {
  const Stream stream;
  Tally tally;
  const OptimizerCase adamw = optimizers(false)[1];
  for (const StoreCase& store : stores()) {
    for (const DType grad : octavo::all_dtypes()) {
      for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::int8}) {
        std::vector<TensorSpec> specs;
        for (const std::int64_t numel : {1024, 512 + 264}) {
          for (int i = 0; i < 16; ++i)
            specs.push_back(tensor_spec(numel, store.dtype, grad, store.store, format));
        }
        const TensorSet set(adamw.config, specs, 4);
        Race race(set, stream, Memory::apart, {Placement::bucket});
        const Grads kinds[] = {Grads::dense, Grads::dense};
        tally.add(std::string(store.name) + ", " + std::string(octavo::name(grad)) + " gradients, " +
                      std::string(octavo::name(format)),
                  race.steps(step_args(adamw, 1), kinds));
      }
    }
  }
}

TEST_F(SmallCuda, ManyTensors) {
  const Stream stream;
  const OptimizerCase lion = optimizers(false)[5];
  std::vector<TensorSpec> specs;
  for (std::int64_t i = 0; i < 300; ++i)
    specs.push_back(tensor_spec(i % 17, DType::f32, DType::bf16, octavo::WeightStore::nearest,
                                i % 2 == 0 ? StateFormat::int4 : StateFormat::fp32));
  const TensorSet set(lion.config, specs, 4);
  Race race(set, stream, Memory::apart, {Placement::as_host});
  const Grads kinds[] = {Grads::dense, Grads::mixed};
  EXPECT_EQ(race.steps(step_args(lion, 1), kinds), "");
}

TEST_F(SmallCuda, Norm) {
  const Stream stream;
  const OptimizerCase adamw = optimizers(false)[1];
  std::vector<TensorSpec> specs;
  for (const std::int64_t numel : {0, 1, 17, 300, 65537})
    specs.push_back(tensor_spec(numel, DType::f32, octavo::all_dtypes()[specs.size() % 3],
                                octavo::WeightStore::nearest, StateFormat::fp32));
  TensorSet set(adamw.config, specs, 4);
  std::vector<octavo::GradView> views;
  for (const TensorBuffers& t : set.tensors())
    views.push_back({t.grad.data(), t.spec.grad_dtype, t.spec.numel});
  std::vector<double> sums(usize(octavo::grad_norm_workspace(views)));
  const octavo::GradNorm expected = octavo::grad_norm(views, sums, 1).value();
  DeviceSet gpu(set, Placement::as_host, stream, Memory::apart);
  auto group = octavo::NormGroup::create(kGpu, gpu.grads());
  ASSERT_TRUE(group.ok()) << group.status().message();
  const DeviceWorkspace workspace(group->workspace_bytes(), Memory::apart);
  const OnDevice<octavo::GradNorm> out;
  ASSERT_TRUE(group->run(workspace.span(), out.get(), stream).ok());
  const octavo::GradNorm got = out.value(stream);
  EXPECT_EQ(got.l2, expected.l2);
  EXPECT_EQ(got.max, expected.max);
  EXPECT_EQ(got.nonfinite, expected.nonfinite);
}

}  // namespace
}  // namespace test
