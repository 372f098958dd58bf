// The parameters of tests: optimizers with their options, weight stores, formats, implementations.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <octavo/backend.h>
#include <octavo/codec.h>
#include <octavo/describe.h>

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace test {

struct OptimizerCase {
  const char* name;
  octavo::GroupConfig config;
  octavo::HyperParams hyper;
};

// Prints a case in a failure.
void PrintTo(const OptimizerCase& optimizer, std::ostream* out);

// Returns the name of a parameterised test.
std::string test_name(const testing::TestParamInfo<OptimizerCase>& parameter);

// The bits of a config, with those of its named options.
inline std::uint32_t switches_of(const octavo::GroupConfig& config) {
  std::uint32_t bits = config.switches;
  const auto add = [&](const char* option, bool on) {
    const int bit = octavo::switch_bit(config.algorithm, option);
    if (on && bit >= 0) bits |= 1U << bit;
  };
  add("amsgrad", config.amsgrad);
  add("momentum", config.momentum);
  return bits;
}

struct StoreCase {
  const char* name;
  octavo::DType dtype;
  octavo::WeightStore store;
};

// Returns one case for each algorithm's kernels; with `options`, every switch as well.
std::vector<OptimizerCase> optimizers(bool options);
std::vector<StoreCase> stores();

octavo::StepArgs step_args(const OptimizerCase& optimizer, std::int64_t step);

// Returns true for formats that have blocks.
bool has_blocks(octavo::StateFormat format);

// True for OCTAVO_TEST_QUICK=1, which skips most of the long tests, and for OCTAVO_TEST_FULL=1, which runs
// all of them.
bool quick();
bool full();

// Returns the implementations that this machine can run, the scalar one last.
std::vector<std::string> supported_implementations();

// Uses one implementation until the end of the scope.
class ForcedImplementation {
 public:
  explicit ForcedImplementation(std::string_view name) {
    EXPECT_TRUE(octavo::force_implementation(name).ok()) << name;
  }
  ~ForcedImplementation() { EXPECT_TRUE(octavo::force_implementation("").ok()); }
  ForcedImplementation(const ForcedImplementation&) = delete;
  ForcedImplementation& operator=(const ForcedImplementation&) = delete;
};

// Returns where two arrays first differ, as text for a failure, or "" if they are equal in bytes.
std::string first_difference(const void* got, const void* expected, std::size_t count,
                             std::size_t element_bytes);

}  // namespace test
