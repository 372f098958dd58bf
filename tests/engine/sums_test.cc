// Algorithms that measure whole tensors, of which other ranks have parts: the engine's caller adds what those
// have measured.
// SPDX-License-Identifier: MIT
#include "tests/engine/engine_set.h"

#include <octavo/describe.h>

namespace test {
namespace {

using octavo::StateFormat;

struct Seen {
  int calls = 0;
  std::int64_t count = 0;
  std::uint32_t part = 0;
  std::int32_t answer = 0;
};

// Another rank that has measured the same.
std::int32_t twice(void* user, octavo::Device device, std::uint32_t part, double* sums, std::int64_t count) {
  auto& seen = *static_cast<Seen*>(user);
  EXPECT_EQ(device, octavo::Device{});
  ++seen.calls;
  seen.count = count;
  seen.part = part;
  for (std::int64_t i = 0; i < count; ++i) sums[i] *= 2.0;
  return seen.answer;
}

TEST(EngineSums, AreAddedForTensorsThatRanksShare) {
  int measured = 0;
  for (const OptimizerCase& optimizer : optimizers(true)) {
    SCOPED_TRACE(optimizer.name);
    const bool measures = octavo::passes(optimizer.config.algorithm, switches_of(optimizer.config)) > 1;
    measured += measures ? 1 : 0;
    EngineSet own(optimizer, {optimizer.config, mixed_specs(StateFormat::int8), 7});
    std::vector<octavo::engine::EngineTensor> tensors;
    for (const std::uint32_t handle : own.all()) tensors.push_back(own.tensor(handle));
    for (const std::size_t shared : {1, 3}) tensors[shared].part = 6;
    ASSERT_TRUE(own.engine.set(own.all(), tensors).ok());
    TensorSet expected = own.set;
    ASSERT_EQ(own.begin({0, 1, 3, 4})->cohorts, measures ? 2 : 1);
    Seen seen;
    octavo::engine::EngineArgs args = own.args();
    if (measures) {
      const auto refused = own.engine.step(args);
      EXPECT_NE(refused.status().message().find("tensor 1: the algorithm measures whole tensors"),
                std::string::npos);
      EXPECT_EQ(own.set.difference(expected), "");
    }
    args.sums = {twice, &seen};
    for (std::int64_t step = 1; step <= 2; ++step) {
      const auto plan = own.begin({0, 1, 3, 4});
      EXPECT_FALSE(plan->fresh);
      const auto done = own.engine.step(args);
      ASSERT_TRUE(done.ok()) << done.status().message();
      EXPECT_EQ(seen.calls, measures ? step : 0);
      for (const std::size_t i : {0, 1, 3, 4}) {
        octavo::StepArgs alone;
        alone.hyper = own.options.hyper;
        alone.seed = own.options.seed;
        alone.step = step;
        if (i == 1 || i == 3) {
          alone.sums.add = [](void* /*context*/, double* sums, std::int64_t count, void* /*stream*/) {
            for (std::int64_t k = 0; k < count; ++k) sums[k] *= 2.0;
          };
        }
        ASSERT_TRUE(test::step(expected.config(), std::vector{expected.tensors()[i].args()}, alone).ok());
      }
      ASSERT_EQ(own.set.difference(expected), "");
    }
    if (!measures) continue;
    EXPECT_EQ(seen.count, 4);  // two numbers for each of two tensors
    EXPECT_EQ(seen.part, 6U);
    seen.answer = 1;
    EXPECT_EQ(own.engine.step(args).status().code(), octavo::StatusCode::failed);
  }
  EXPECT_GT(measured, 0);
}

}  // namespace
}  // namespace test
