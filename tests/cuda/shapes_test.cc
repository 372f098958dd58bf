// Tests the shape of every kernel on every architecture: the threads and shared memory of its launch. The
// host computes them, so only the comparison with a device needs a GPU.
// SPDX-License-Identifier: MIT
#include "cuda/runtime/arch.h"
#include "cuda/runtime/runtime.h"
#include "cuda/step/kernels.h"
#include "cuda/step/launch_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace octavo::cuda {
namespace {

constexpr int kArchitectures[] = {700, 750, 800, 860, 870, 890, 900, 1000, 1030, 1100, 1200, 1210};

template <class Fn>
void for_every_kernel(Fn&& f) {
  for (std::size_t rule = 0; rule < Algorithms::kSize; ++rule) {
    for (std::size_t format = 0; format < Formats::kSize; ++format) {
      for (int kind = 0; kind < kWeightKinds; ++kind) {
        SCOPED_TRACE("rule " + std::to_string(rule) + ", format " + std::to_string(format) + ", weights " +
                     std::to_string(kind));
        const StepKernel& kernel =
            step_kernel(rule, static_cast<StateFormat>(format), static_cast<WeightKind>(kind));
        if (kernel.kernel == nullptr) continue;  // OCTAVO_CUDA_RULES omits the rule
        f(kernel);
        if (kernel.trust_ratio != nullptr) {
          StepKernel first = kernel;
          first.kernel = kernel.trust_ratio;
          f(first);
        }
        for (const StepKernel* pass : {kernel.rank1, kernel.panels})
          if (pass != nullptr) f(*pass);
      }
    }
  }
}

TEST(CudaShapes, EveryKernelFitsEveryArchitecture) {
  int kernels = 0;
  for_every_kernel([&](const StepKernel& kernel) {
    ++kernels;
    EXPECT_EQ(kernel.goes_as, 0);
    for (const int arch : kArchitectures) {
      SCOPED_TRACE(arch);
      const int warps = kernel.threads(arch) / 32;
      EXPECT_EQ(kernel.threads(arch) % 32, 0);
      EXPECT_GE(warps, kSchedulers);
      EXPECT_LE(kernel.threads(arch), kMostThreads);
      EXPECT_GE(kernel.shared_bytes(arch), 0);
      EXPECT_LE(kernel.shared_bytes(arch), shared_limit(arch));
      EXPECT_TRUE(kernel.shared_start(arch) == 0 || has_large_shared(arch));
    }
  });
  EXPECT_GT(kernels, 0);
}

// A block uses its limiting resource completely: another four warps, or another one below twelve, have no
// registers or no shared memory.
TEST(CudaShapes, WarpsFollowFromWhatIsThere) {
  static_assert(warps_of_block(96, 32) == 20);
  static_assert(warps_of_block(112, 32) == 16);
  static_assert(warps_of_block(128, 32) == 16);
  static_assert(warps_of_block(80, 32) == 24);
  static_assert(warps_of_block(32, 99) == 32);  // a block has 1,024 threads at most
  static_assert(warps_of_block(96, 19) == 16);
  static_assert(warps_of_block(96, 13) == 12);
  static_assert(warps_of_block(96, 11) == 11);
  static_assert(warps_of_block(96, 5) == 5);
  for (int registers = 32; registers <= 255; ++registers) {
    const int most = warps_of_block(registers, 32);
    EXPECT_LE((most / kSchedulers) * 32 * registers, kSchedulerRegisters) << registers;
    for (int room = 1; room <= 32; ++room) {
      const int warps = warps_of_block(registers, room);
      EXPECT_LE(warps, room);
      EXPECT_LE(warps, most);
      EXPECT_GT(warps + (warps < 3 * kSchedulers ? 1 : kSchedulers), std::min(room, most)) << registers;
    }
  }
}

// The table of architectures has the limits of the local GPU, and each kernel's code fits a multiprocessor
// with the warps and the shared memory of its launch.
TEST(CudaShapes, TheDeviceHasWhatTheTableSays) {
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "no GPU";
  }
  const int arch = 100 * device.major + 10 * device.minor;
  EXPECT_EQ(shared_limit(arch), static_cast<int>(device.sharedMemPerBlockOptin));
  EXPECT_EQ(kSchedulers * kSchedulerRegisters, device.regsPerMultiprocessor);
  EXPECT_EQ(kMostThreads, device.maxThreadsPerBlock);
  EXPECT_LE(kMostThreads, device.maxThreadsPerMultiProcessor);
  for_every_kernel([&](const StepKernel& kernel) {
    const auto shape = prepare_kernel("[test]", kernel, 0);
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    cudaFuncAttributes code{};
    ASSERT_EQ(cudaFuncGetAttributes(&code, kernel.kernel), cudaSuccess);
    EXPECT_GE(code.maxThreadsPerBlock, shape->threads);
    int blocks = 0;
    ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel.kernel, shape->threads,
                                                            static_cast<std::size_t>(shape->shared)),
              cudaSuccess);
    EXPECT_GE(blocks, 1) << code.numRegs << " registers a thread";
  });
}

// src/cuda/README.md shows the warps of AdamW; the rows there must equal these.
TEST(CudaShapes, TheTableInTheDocument) {
  std::ifstream file(OCTAVO_TEST_ARCHITECTURE_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  const auto cell = [](int arch, StateFormat format) {
    const auto warps = [&](WeightKind kind) {
      return std::to_string(step_kernel(0, format, kind).threads(arch) / 32);
    };
    const std::string wide = warps(WeightKind::f32);
    const std::string half = warps(WeightKind::half);
    return wide == half ? wide : wide + " / " + half;
  };
  const struct {
    const char* name;
    std::vector<int> same;
  } rows[] = {{"9.0, 10.0, 11.0", {900, 1000, 1030, 1100}},
              {"8.0, 8.7", {800, 870}},
              {"8.6, 8.9, 12.0", {860, 890, 1200, 1210}},
              {"7.0, 7.5 (no stages)", {700, 750}}};
  for (const auto& row : rows) {
    for (const int arch : row.same) {
      std::ostringstream text;
      text << "\n| " << row.name << " |";
      for (const StateFormat format : {StateFormat::int8, StateFormat::int4, StateFormat::fp8_e4m3,
                                       StateFormat::fp32, StateFormat::bf16})
        text << ' ' << cell(arch, format) << " |";
      text << '\n';
      EXPECT_NE(page.str().find(text.str()), std::string::npos)
          << "for " << arch << " src/cuda/README.md should say" << text.str();
    }
  }
}

}  // namespace
}  // namespace octavo::cuda
