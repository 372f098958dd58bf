// Tests tensors of a million elements, and of more than 2^31: the CPU's bytes, for the large ones in slices
// (blocks are independent, and a slice is a shard with its offset).
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "tests/cuda/device.h"
#include "tests/reference/formats.h"
#include "tests/support/random.h"

#include <cmath>
#include <cstring>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;
using octavo::WeightStore;

class LargeCuda : public GpuTest {};

TEST_F(LargeCuda, AMillionElements) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      const std::vector<StoreCase> all = stores();
      const StoreCase& store = all[combination++ % all.size()];
      const DType grad = octavo::all_dtypes()[combination % octavo::all_dtypes().size()];
      TensorSpec spec = tensor_spec(1000003, store.dtype, grad, store.store, format);
      if (format == StateFormat::int4_rank1) {
        spec = tensor_spec(1000 * 1001, store.dtype, grad, store.store, format);
        spec.shape = {1000, 1001};
        spec.ndim = 2;
      }
      const TensorSet set = pooled_set(optimizer.config, {&spec, 1}, combination);
      Race race(set, stream);
      const Grads kinds[] = {Grads::mixed, Grads::dense, Grads::dense};
      tally.add(std::string(optimizer.name) + ", " + text_of(spec),
                race.steps(step_args(optimizer, 1), kinds));
    }
  }
}

// Enough tiles that every warp of a large GPU processes several, fetching one while it computes another,
// including tiles for the slow path. OCTAVO_TEST_FULL=1: every store with every format.
TEST_F(LargeCuda, ManyTilesAWarp) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  const std::vector<StoreCase> all = stores();
  for (const OptimizerCase& optimizer : optimizers(false)) {
    const bool stateless = optimizer.config.algorithm == octavo::Algorithm::sgd && !optimizer.config.momentum;
    for (const StateFormat format : octavo::all_state_formats()) {
      if (format == StateFormat::int4_rank1 || (stateless && format != StateFormat::fp32)) continue;
      for (std::size_t k = 0; k < all.size(); ++k) {
        if (!full() && !stateless && k % 3 != combination % 3) continue;
        const StoreCase& store = all[k];
        const DType grad = octavo::all_dtypes()[(combination + k) % 3];
        std::vector<TensorSpec> specs;
        for (const std::int64_t numel : {(1 << 21) + 13, 700, (3 << 20) / 2, 4096 * 33, 3 << 19, 99999})
          specs.push_back(tensor_spec(numel, store.dtype, grad, store.store, format));
        const TensorSet set = pooled_set(optimizer.config, specs, combination);
        Race race(set, stream, Memory::together, {Placement::mixed, Placement::bucket});
        octavo::StepArgs args = step_args(optimizer, 1);
        args.skip_nonfinite = true;
        const Grads kinds[] = {Grads::patchy, Grads::patchy};
        tally.add(std::string(optimizer.name) + ", " + text_of(specs[0]), race.steps(args, kinds));
      }
      ++combination;
    }
  }
}

// `bytes` bytes on the device, which repeat a pattern.
class Repeated {
 public:
  Repeated(std::int64_t bytes, std::span<const std::byte> pattern) {
    OCTAVO_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), usize(bytes)));
    const std::size_t total = usize(bytes);
    std::size_t done = std::min(pattern.size(), total);
    OCTAVO_CUDA(cudaMemcpy(data_, pattern.data(), done, cudaMemcpyHostToDevice));
    while (done < total) {
      const std::size_t part = std::min(done, total - done);
      OCTAVO_CUDA(cudaMemcpy(data_ + done, data_, part, cudaMemcpyDeviceToDevice));
      done += part;
    }
    OCTAVO_CUDA(cudaDeviceSynchronize());
  }
  ~Repeated() { (void)cudaFree(data_); }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

std::vector<std::byte> pattern_of(std::int64_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(usize(2 * count));
  Random random(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    float value = 0.0f;
    while (std::fabs(value) < 0.02f) value = random.gaussian();
    reference::store_nearest(DType::bf16, bytes.data(), i, 0.05f * value);
  }
  return bytes;
}

TEST_F(LargeCuda, MoreThanTwoToThe31Elements) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  OCTAVO_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < (std::size_t{20} << 30))
    GTEST_SKIP() << "needs 20 GiB of free GPU memory, there are " << (free_bytes >> 20) << " MiB";
  const Stream stream;
  // Not a power of two, so that an index that wraps reads other values. A multiple of 8, so that slices stay
  // simple.
  constexpr std::int64_t kPattern = (std::int64_t{1} << 20) + 8 * 1237;
  const std::int64_t numel = (std::int64_t{1} << 31) + 5;
  const std::vector<std::byte> weights = pattern_of(kPattern, 1);
  const std::vector<std::byte> grads = pattern_of(kPattern, 2);
  const OptimizerCase adamw = optimizers(false)[1];
  octavo::GroupConfig config = adamw.config;
  config.device = kGpu;
  for (const StateFormat format : {StateFormat::int8, StateFormat::int4}) {
    octavo::TensorArgs t;
    t.spec = tensor_spec(numel, DType::bf16, DType::bf16, WeightStore::stochastic, format);
    t.id = 77;
    const octavo::TensorLayout layout = octavo::layout(config, t.spec).value();
    const std::byte zero[4096] = {};
    const Repeated param(2 * numel, weights);
    const Repeated grad(2 * numel, grads);
    const Repeated codes0(layout.slot[0].codes_bytes, zero);
    const Repeated codes1(layout.slot[1].codes_bytes, zero);
    const Repeated scales0(4 * layout.slot[0].scales, zero);
    const Repeated scales1(4 * layout.slot[1].scales, zero);
    t.param = param.data();
    t.grad = grad.data();
    t.state[0] = {codes0.data(), reinterpret_cast<float*>(scales0.data())};
    t.state[1] = {codes1.data(), reinterpret_cast<float*>(scales1.data())};
    auto group = octavo::Group::create(config, {&t, 1});
    ASSERT_TRUE(group.ok()) << group.status().message();
    const DeviceWorkspace workspace(group->workspace_bytes());
    for (std::int64_t step = 1; step <= 2; ++step) {
      octavo::StepArgs args = step_args(adamw, step);
      args.stream = stream;
      args.workspace = workspace.span();
      args.skip_nonfinite = step == 2;  // its kernel reads all elements, too
      const auto report = group->step(args);
      ASSERT_TRUE(report.ok()) << report.status().message();
    }
    stream.wait();
    EXPECT_TRUE(workspace.surroundings_intact(stream));

    Tally tally;
    const std::int64_t block = octavo::default_block_size(format);
    const std::int64_t length = 16 * block;
    for (const std::int64_t start :
         {std::int64_t{0}, (std::int64_t{1} << 29) - 512 * 3, (std::int64_t{1} << 30) - 512,
          (std::int64_t{1} << 30) + (std::int64_t{1} << 29), numel / block * block - 8 * block}) {
      TensorSpec part = t.spec;
      part.numel = std::min(length, numel - start);
      TensorSet slice(adamw.config, {&part, 1}, t.id);
      TensorBuffers& b = slice.tensors()[0];
      b.offset = start;
      ASSERT_EQ(b.id, t.id);
      for (std::int64_t i = 0; i < part.numel; ++i) {
        const std::size_t at = usize(2 * ((start + i) % kPattern));
        std::memcpy(b.param.data() + 2 * i, weights.data() + at, 2);
        std::memcpy(b.grad.data() + 2 * i, grads.data() + at, 2);
      }
      for (std::int64_t step = 1; step <= 2; ++step) ASSERT_TRUE(slice.step(step_args(adamw, step)).ok());
      const auto compare = [&](const char* what, const std::byte* device, const Buffer& want) {
        std::vector<std::byte> got(usize(want.size()));
        OCTAVO_CUDA(cudaMemcpy(got.data(), device, got.size(), cudaMemcpyDeviceToHost));
        const std::string difference = first_difference(got.data(), want.data(), got.size(), 1);
        tally.add(std::string(octavo::name(format)) + ", slice at " + std::to_string(start) + ", " + what,
                  difference.empty() ? "" : "byte as " + difference);
      };
      const std::int64_t bits = format == StateFormat::int8 ? 8 : 4;
      compare("param", param.data() + 2 * start, b.param);
      compare("codes[0]", codes0.data() + start * bits / 8, b.codes[0]);
      compare("codes[1]", codes1.data() + start * bits / 8, b.codes[1]);
      compare("scales[0]", scales0.data() + start / block * 4, b.scales[0]);
      compare("scales[1]", scales1.data() + start / block * 4, b.scales[1]);
    }
  }
}

}  // namespace
}  // namespace test
