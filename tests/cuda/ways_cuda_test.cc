// Tests every format with every store over many tiles, which covers the differences between architectures
// (stages, tables, conversions). It runs as it is for the local GPU and, with preloaded libraries, for
// emulated architectures (cmake/OctavoCudaAs.cmake).
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

// A preloaded library that cannot be loaded is ignored, and the test would run with the usual one.
TEST(WaysLibraryCuda, IsTheOneAskedFor) {
  const char* const asked = std::getenv("OCTAVO_TEST_LIBRARY");
  if (asked == nullptr) GTEST_SKIP() << "OCTAVO_TEST_LIBRARY is not set: the library is the usual one";
  void* const function = dlsym(RTLD_DEFAULT, "octavo_version_string");
  Dl_info info{};
  ASSERT_TRUE(function != nullptr && dladdr(function, &info) != 0);
  EXPECT_TRUE(std::filesystem::equivalent(info.dli_fname, asked))
      << info.dli_fname << ", asked for " << asked;
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
