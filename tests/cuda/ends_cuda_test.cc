// Ends of tensors, of less than a tile of 512 elements: vectors and single elements write the CPU's bytes,
// and nothing after them.
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

class EndsCuda : public GpuTest, public testing::WithParamInterface<OptimizerCase> {};

// Ends of every number of chunks of eight, and some of four; with and without one complete tile before them;
// in blocks of 32 to 512 elements; with aligned gradients and gradients in a bucket, of every type.
TEST_P(EndsCuda, EveryNumberOfChunks) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      ++combination;
      std::vector<TensorSpec> specs;
      for (std::int64_t end = 8; end < 512; end += 8) {
        const std::int64_t block = has_blocks(format) ? std::int64_t{32} << (specs.size() % 5) : 0;
        const DType grad = octavo::all_dtypes()[(specs.size() + combination) % 3];
        const std::int64_t numel = end + (specs.size() % 2 == 0 ? 512 : 0) + (specs.size() % 7 == 0 ? 4 : 0);
        specs.push_back(tensor_spec(numel, store.dtype, grad, store.store, format, block));
        if (specs.size() % 3 != 0) give_shape(specs.back());
      }
      const TensorSet set(GetParam().config, specs, combination);
      Race race(set, stream, Memory::together, {Placement::aligned, Placement::bucket});
      const Grads kinds[] = {Grads::dense, Grads::dense, Grads::mixed, Grads::special, Grads::dense};
      tally.add(std::string(octavo::name(format)) + ", " + store.name,
                race.steps(step_args(GetParam(), 1), kinds));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, EndsCuda, testing::ValuesIn(optimizers(false)), test_name);

}  // namespace
}  // namespace test
