// 4bit-rank1 on the GPU writes the CPU's bytes for any shape: rows for complete panels, rows for vectors,
// rows for neither, folded axes, axes of length one, and missing rows at the end.
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"

#include <cmath>
#include <initializer_list>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

using Dims = std::initializer_list<std::int64_t>;

TensorSpec rank1(Dims dims, const StoreCase& store, DType grad, std::int64_t block = 0) {
  std::int64_t numel = 1;
  for (const std::int64_t n : dims) numel *= n;
  TensorSpec spec = tensor_spec(numel, store.dtype, grad, store.store, StateFormat::int4_rank1, block);
  spec.ndim = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), spec.shape.begin());
  return spec;
}

constexpr Dims kShapes[] = {
    // Panels of 256 columns: complete ones, several down and across, missing rows, one row alone.
    {16, 256},
    {48, 512},
    {35, 768},
    {1, 256},
    {2, 5120},
    // Panels of 128 columns.
    {32, 128},
    {37, 640},
    {2, 384},
    {3, 128},
    // Vectors of eight, in rows of less and more than a tile, down to one chunk.
    {100, 200},
    {40, 8},
    {70, 16},
    {5, 1032},
    {9, 576},
    // No alignment at all.
    {31, 33},
    {257, 129},
    {130, 7},
    {3, 1001},
    {1030, 1},
    {77, 1},
    {1, 77},
    {1, 1},
    // Folded axes: convolutions, experts, axes of length one in all positions.
    {64, 128, 3, 3},
    {16, 16, 3, 3},
    {40, 3, 7, 7},
    {1024, 1, 9},
    {130, 1, 31},
    {4, 33, 256},
    {3, 5, 6, 64},
    {96, 256, 1},
    {1, 96, 1, 256, 1},
    {2, 1, 3, 1, 2, 1, 3, 5},
    {300, 1, 1},
    {1, 1, 300},
    // Blocks of 128 instead of rank-1 scales.
    {4096},
    {100},
};

std::vector<TensorSpec> all_shapes(const StoreCase& store, std::size_t combination) {
  std::vector<TensorSpec> specs;
  const auto& dtypes = octavo::all_dtypes();
  for (const Dims& dims : kShapes)
    specs.push_back(rank1(dims, store, dtypes[(combination + specs.size()) % dtypes.size()]));
  return specs;
}

class Rank1Cuda : public GpuTest, public testing::WithParamInterface<OptimizerCase> {};

TEST_P(Rank1Cuda, EveryShapeEqualsTheCpu) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const StoreCase& store : stores()) {
    ++combination;
    const TensorSet set(GetParam().config, all_shapes(store, combination), combination);
    {
      Race race(set, stream, Memory::together, {Placement::aligned});
      const Grads kinds[] = {Grads::dense, Grads::dense, Grads::dense};
      tally.add(std::string(store.name) + ", ordinary values", race.steps(step_args(GetParam(), 1), kinds));
    }
    Race race(set, stream);
    const Grads kinds[] = {Grads::mixed, Grads::dense, Grads::tiny,    Grads::zero,
                           Grads::dense, Grads::huge,  Grads::special, Grads::dense};
    tally.add(store.name, race.steps(step_args(GetParam(), 1), kinds));
  }
}

// Coupled decay reads the weights in the first pass, too; with a factor and a guard.
TEST_P(Rank1Cuda, CoupledDecay) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const StoreCase& store : stores()) {
    ++combination;
    const TensorSet set(GetParam().config, all_shapes(store, combination), combination);
    octavo::StepArgs args = step_args(GetParam(), 1);
    args.hyper.weight_decay = 0.3;
    args.hyper.decay = octavo::Decay::coupled;
    args.grad_factor = 0.37;
    args.skip_nonfinite = true;
    Race race(set, stream);
    const Grads kinds[] = {Grads::dense, Grads::dense, Grads::patchy, Grads::special, Grads::dense};
    tally.add(store.name, race.steps(args, kinds));
  }
}

TEST_P(Rank1Cuda, EveryBlockSize) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  const std::vector<StoreCase> all = stores();
  for (std::int64_t block = octavo::kMinBlockSize; block <= octavo::kMaxBlockSize; block *= 2) {
    const StoreCase& store = all[combination++ % all.size()];
    std::vector<TensorSpec> specs;
    for (const Dims& dims : {Dims{40, 256}, Dims{37, 640}, Dims{9, 1032}, Dims{33, 65}, Dims{8, 32, 3, 3}})
      specs.push_back(rank1(dims, store, octavo::all_dtypes()[combination % 3], block));
    const TensorSet set(GetParam().config, specs, combination);
    Race race(set, stream);
    const Grads kinds[] = {Grads::dense, Grads::dense, Grads::mixed, Grads::special};
    tally.add("block " + std::to_string(block), race.steps(step_args(GetParam(), 1), kinds));
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Rank1Cuda, testing::ValuesIn(optimizers(true)), test_name);

class PanelsCuda : public GpuTest {};

// Several panels for every warp of a large GPU; rows and complete columns without gradients; tiles for the
// slow path between quick ones.
TEST_F(PanelsCuda, ManyToAWarp) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  const std::vector<StoreCase> all = stores();
  for (const OptimizerCase& optimizer : optimizers(false)) {
    const StoreCase& store = all[combination++ % all.size()];
    const DType grad = octavo::all_dtypes()[combination % 3];
    const TensorSpec specs[] = {rank1({1025, 640}, store, grad),    rank1({2048, 1024, 1}, store, grad),
                                rank1({300, 1, 9}, store, grad),    rank1({4096, 256}, store, grad),
                                rank1({64, 64, 3, 3}, store, grad), rank1({200, 2304}, store, grad)};
    const TensorSet set = pooled_set(optimizer.config, specs, combination);
    Race race(set, stream, Memory::together, {Placement::aligned, Placement::mixed});
    octavo::StepArgs args = step_args(optimizer, 1);
    args.skip_nonfinite = true;
    const Grads kinds[] = {Grads::patchy, Grads::dense, Grads::patchy};
    tally.add(optimizer.name, race.steps(args, kinds));
  }
}

TEST_F(PanelsCuda, RowsAndColumnsWithoutGradients) {
  const Stream stream;
  const OptimizerCase adamw = optimizers(false)[1];
  const StoreCase store = stores()[1];
  const TensorSpec specs[] = {rank1({64, 512}, store, DType::f32), rank1({50, 128}, store, DType::f32),
                              rank1({30, 48}, store, DType::f32), rank1({21, 13}, store, DType::f32)};
  TensorSet cpu(adamw.config, specs, 3);
  DeviceSet gpu(cpu, Placement::aligned, stream);
  for (std::int64_t step = 1; step <= 3; ++step) {
    fill(cpu, Grads::dense, static_cast<std::uint64_t>(step));
    for (TensorBuffers& t : cpu.tensors()) {
      const std::int64_t columns = t.spec.shape[1];
      for (std::int64_t i = 0; i < t.spec.numel; ++i) {
        const std::int64_t row = i / columns;
        if (row % 3 == 1 || (i % columns) % 5 == 2) t.grad.as<float>()[i] = 0.0F;
        if (step == 3 && row == 2 && i % columns == 3)
          t.grad.as<float>()[i] = INFINITY;  // both of its scales
      }
    }
    gpu.upload_grads(cpu);
    ASSERT_TRUE(gpu.step(step_args(adamw, step)).ok());
    ASSERT_TRUE(cpu.step(step_args(adamw, step)).ok());
    ASSERT_EQ(gpu.difference(cpu), "") << "step " << step;
  }
}

// Only gradients are unaligned, like views into a bucket.
TEST_F(PanelsCuda, UnalignedGradients) {
  const Stream stream;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const DType grad : octavo::all_dtypes()) {
      const StoreCase store = stores()[grad == DType::f32 ? 0 : 1];
      std::vector<TensorSpec> specs;
      for (int i = 0; i < 6; ++i) {  // each begins at another element
        specs.push_back(rank1({35, 512}, store, grad));
        specs.push_back(rank1({37, 640}, store, grad));
        specs.push_back(rank1({9, 1032}, store, grad));
      }
      TensorSet cpu(optimizer.config, specs, 5);
      DeviceSet gpu(cpu, Placement::aligned, stream);
      for (std::int64_t step = 1; step <= 2; ++step) {
        fill(cpu, Grads::dense, static_cast<std::uint64_t>(step));
        gpu.upload_grads(cpu);
        const DeviceGrads grads(cpu, Placement::as_host, stream);
        ASSERT_TRUE(gpu.group().rebind_grads(grads.pointers()).ok());
        ASSERT_TRUE(gpu.step(step_args(optimizer, step)).ok());
        ASSERT_TRUE(cpu.step(step_args(optimizer, step)).ok());
        ASSERT_EQ(gpu.difference(cpu), "") << optimizer.name << ", step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace test
