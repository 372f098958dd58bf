// Tests every format with every store over many tiles, which covers the differences between architectures
// (stages, tables, conversions). cuda_test runs it with the code path of the local GPU,
// cuda_as_<architecture> with that of another one (cmake/OctavoCudaAs.cmake).
// SPDX-License-Identifier: MIT
#include "cuda/step/kernels.h"
#include "optimizers/format_resolution.h"
#include "tests/cuda/device.h"

#include <cstdlib>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

// The kernels emulate the architecture of OCTAVO_TEST_GOES_AS; if it is not set, none.
TEST(WaysLibraryCuda, IsTheOneAskedFor) {
  const char* const asked = std::getenv("OCTAVO_TEST_GOES_AS");
  const std::size_t adamw = octavo::algorithm_index(optimizers(false)[1].config);
  const auto kernel = octavo::cuda::step_kernel(adamw, StateFormat::int8, octavo::cuda::WeightKind::f32);
  EXPECT_EQ(kernel.goes_as, asked == nullptr ? 0 : std::atoi(asked));
}

class WaysCuda : public GpuTest {};

TEST_F(WaysCuda, EveryFormatAndStore) {
  const Stream stream;
  Tally tally;
  const OptimizerCase adamw = optimizers(false)[1];
  std::uint64_t combination = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      for (const DType grad : {store.dtype, store.dtype == DType::f32 ? DType::bf16 : DType::f32}) {
        std::vector<TensorSpec> specs;
        for (const std::int64_t numel : {(1 << 20) + 13, 700, 3 << 19, 4096 * 33}) {
          specs.push_back(tensor_spec(numel, store.dtype, grad, store.store, format));
          give_shape(specs.back());
        }
        Race race(pooled_set(adamw.config, specs, ++combination), stream, Memory::together,
                  {Placement::aligned});
        const Grads kinds[] = {Grads::dense, Grads::patchy};
        tally.add(text_of(specs[0]), race.steps(step_args(adamw, 1), kinds));
      }
    }
  }
}

}  // namespace
}  // namespace test
