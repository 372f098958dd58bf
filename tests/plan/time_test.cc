// Compares forecast times of kernels with those of an H200, and tests the formula for other GPUs.
// SPDX-License-Identifier: MIT
#include <octavo/plan.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

namespace test {
namespace {

namespace plan = octavo::plan;
using plan::Bound;
using plan::Precision;

plan::Gpu gpu(std::string_view key) { return plan::find_gpu(key).value(); }

plan::Kernel product(Precision precision, std::int64_t batch, std::int64_t rows, std::int64_t columns,
                     std::int64_t inner) {
  const double bytes = precision == Precision::fp8                                    ? 1
                       : precision == Precision::fp32 || precision == Precision::tf32 ? 4
                                                                                      : 2;
  const auto b = static_cast<double>(batch), m = static_cast<double>(rows), n = static_cast<double>(columns),
             k = static_cast<double>(inner);
  plan::Kernel kernel;
  kernel.work = plan::Work::product;
  kernel.precision = precision;
  kernel.bytes = b * (bytes * (m * k + k * n) + std::max(2.0, bytes) * m * n);
  kernel.batch = batch;
  kernel.rows = rows;
  kernel.columns = columns;
  kernel.inner = inner;
  return kernel;
}
plan::Kernel stream(double bytes) {
  plan::Kernel kernel;
  kernel.bytes = bytes;
  return kernel;
}

// The numbers are medians of calls on an idle GPU, averaged over three orders of the operands. A single call
// includes the host's time until the launch, which a kernel among others does not: these two constants, in
// microseconds, are fitted to the calls, too. Calls below 30 us are omitted, and two of small matmuls that
// took 31 and 34, because they only show the host.
constexpr double kProductAlone = 14, kStreamAlone = 6;
struct Product {
  Precision precision;
  std::int64_t batch, rows, columns, inner;
  double microseconds;
};
constexpr Product kProducts[] = {
    {Precision::bf16, 1, 2048, 2048, 2048, 37.8},    {Precision::bf16, 1, 8000, 1024, 1024, 40.9},
    {Precision::bf16, 1, 2000, 4096, 1024, 40.4},    {Precision::bf16, 1, 8000, 640, 1024, 31.2},
    {Precision::bf16, 1, 4096, 4096, 4096, 188.8},   {Precision::bf16, 1, 8192, 8192, 8192, 1408.5},
    {Precision::bf16, 1, 8000, 1024, 4096, 109.1},   {Precision::bf16, 1, 8000, 4096, 1024, 121.9},
    {Precision::bf16, 1, 8000, 2048, 1024, 65.9},    {Precision::bf16, 1, 4000, 1024, 4096, 58.7},
    {Precision::bf16, 1, 16384, 65536, 512, 1727.1}, {Precision::bf16, 1, 16384, 512, 65536, 1508.7},
    {Precision::bf16, 1, 4096, 1024, 4096, 70.2},    {Precision::bf16, 1, 1024, 4096, 8000, 118.6},
    {Precision::bf16, 1, 512, 65536, 16384, 1606.7}, {Precision::bf16, 1, 8192, 8198, 640, 474.8},
    {Precision::bf16, 4, 16384, 16384, 512, 1807.7}, {Precision::bf16, 4, 16384, 512, 16384, 1552.4},
    {Precision::bf16, 128, 512, 512, 16384, 1654.5}, {Precision::bf16, 128, 512, 16384, 512, 1978.0},
    {Precision::bf16, 128, 512, 512, 512, 85.5},     {Precision::bf16, 256, 250, 250, 128, 58.4},
    {Precision::bf16, 256, 250, 128, 250, 48.0},     {Precision::bf16, 8, 8000, 500, 128, 101.4},
    {Precision::bf16, 1024, 250, 250, 128, 190.6},   {Precision::bf16, 32, 512, 512, 8192, 226.1},
    {Precision::bf16, 4, 512, 16384, 16384, 1591.3}, {Precision::fp32, 1, 1024, 1024, 1024, 70.3},
    {Precision::fp32, 1, 4096, 4096, 4096, 2761.5},  {Precision::fp32, 1, 8192, 8192, 8192, 21740.3},
    {Precision::fp32, 1, 8000, 4096, 1024, 1448.1},  {Precision::fp32, 1, 16384, 16384, 512, 5579.7},
    {Precision::tf32, 1, 4096, 4096, 4096, 370.3},   {Precision::tf32, 1, 8192, 8192, 8192, 2772.0},
    {Precision::tf32, 1, 8000, 4096, 1024, 269.9},   {Precision::tf32, 1, 16384, 16384, 512, 986.3},
};
// FP8 matmuls: many calls in sequence.
constexpr Product kFp8[] = {
    {Precision::fp8, 1, 8192, 4096, 1024, 58},     {Precision::fp8, 1, 8192, 4096, 4096, 189},
    {Precision::fp8, 1, 16384, 14336, 4096, 1464}, {Precision::fp8, 1, 16384, 8192, 8192, 1585},
    {Precision::fp8, 1, 16384, 65536, 512, 1106},  {Precision::fp8, 4, 16384, 16384, 512, 986},
};
struct Stream {
  double mib, microseconds;
};
constexpr Stream kStreams[] = {
    {64, 24.1},       // copy
    {96, 31.4},       // add
    {96, 30.0},       // product of two
    {48, 20.5},       // cast
    {64, 23.6},       // copy
    {96, 31.9},       // add
    {128, 38.6},      // copy
    {192, 55.6},      // add
    {192, 54.7},      // product of two
    {128, 38.9},      // relu
    {64, 21.9},       // fill
    {96, 33.3},       // cast
    {128, 38.3},      // copy
    {192, 55.0},      // add
    {256, 69.5},      // copy
    {384, 101.0},     // add
    {384, 100.2},     // product of two
    {256, 71.0},      // relu
    {128, 35.6},      // fill
    {192, 57.4},      // cast
    {256, 70.8},      // copy
    {384, 99.3},      // add
    {512, 133.7},     // copy
    {768, 193.3},     // add
    {768, 192.5},     // product of two
    {512, 134.0},     // relu
    {256, 64.1},      // fill
    {384, 102.1},     // cast
    {1024, 260.4},    // copy
    {1536, 376.8},    // add
    {2048, 508.4},    // copy
    {3072, 745.6},    // add
    {3072, 746.6},    // product of two
    {2048, 514.2},    // relu
    {1024, 234.8},    // fill
    {1536, 380.6},    // cast
    {4096, 1011.7},   // copy
    {6144, 1476.6},   // add
    {8192, 2004.5},   // copy
    {12288, 2953.3},  // add
    {12288, 2962.1},  // product of two
    {8192, 2039.1},   // relu
    {4096, 925.7},    // fill
    {6144, 1483.4},   // cast
};

class Errors {
 public:
  void add(double seconds, double alone, double measured) {
    errors_.push_back(std::abs((seconds * 1e6 + alone) / measured - 1));
  }
  double median() {
    std::sort(errors_.begin(), errors_.end());
    return errors_[errors_.size() / 2];
  }
  double worst() { return *std::max_element(errors_.begin(), errors_.end()); }
  void print(const char* what) {
    std::cout << what << ": " << errors_.size() << " kernels, median error " << 100 * median() << "%, worst "
              << 100 * worst() << "%\n";
  }

 private:
  std::vector<double> errors_;
};

TEST(KernelTime, ProductsOfAnH200) {
  Errors errors;
  const auto add = [&](const Product& each, double alone) {
    const plan::Kernel kernel = product(each.precision, each.batch, each.rows, each.columns, each.inner);
    errors.add(plan::time(gpu("h200"), kernel).seconds, alone, each.microseconds);
  };
  for (const Product& each : kProducts) add(each, kProductAlone);
  for (const Product& each : kFp8) add(each, 0);
  errors.print("products");
  EXPECT_LT(errors.median(), 0.05);
  EXPECT_LT(errors.worst(), 0.25);
}

TEST(KernelTime, StreamsOfAnH200) {
  Errors errors;
  for (const Stream& each : kStreams) {
    const plan::KernelTime found = plan::time(gpu("h200"), stream(each.mib * 1048576));
    EXPECT_EQ(found.bound, Bound::memory);
    errors.add(found.seconds, kStreamAlone, each.microseconds);
  }
  errors.print("streams");
  EXPECT_LT(errors.median(), 0.03);
  EXPECT_LT(errors.worst(), 0.10);
}

// The widening cast of torch reaches half of a copy's speed, and the caller has to set that.
TEST(KernelTime, AShareOfTheBandwidth) {
  plan::Kernel kernel = stream(6.0 * (1 << 28));
  kernel.bandwidth = 0.5;
  EXPECT_NEAR(plan::time(gpu("h200"), kernel).seconds * 1e6 + kStreamAlone, 758, 0.03 * 758);
}

TEST(KernelTime, SmallKernelsAreLaunches) {
  const plan::KernelTime one = plan::time(gpu("h200"), stream(1024));
  EXPECT_EQ(one.bound, Bound::launch);
  EXPECT_NEAR(one.seconds, 1.03e-6, 0.05e-6);  // of 200 in a graph
  plan::Kernel three = stream(1024);
  three.launches = 3;
  EXPECT_NEAR(plan::time(gpu("h200"), three).seconds, 3 * one.seconds, 0.01e-6);
  EXPECT_EQ(plan::time(gpu("h200"), product(Precision::bf16, 1, 0, 64, 64)).bound, Bound::launch);
}

TEST(KernelTime, TilesComeInWaves) {
  const plan::Gpu h200 = gpu("h200");
  const auto seconds = [&](std::int64_t batch, std::int64_t inner) {
    plan::Kernel kernel = product(Precision::bf16, batch, 128, 256, inner);
    kernel.bytes = 0;
    return plan::time(h200, kernel).seconds;
  };
  EXPECT_EQ(seconds(131, 8192), seconds(132, 8192));
  EXPECT_GT(seconds(133, 8192), 1.3 * seconds(132, 8192));
  // A short inner dimension is less efficient.
  EXPECT_GT(seconds(1320, 128) / 128, 1.5 * seconds(1320, 8192) / 8192);
  const plan::KernelTime aligned = plan::time(h200, product(Precision::bf16, 1, 8192, 8192, 640));
  EXPECT_EQ(aligned.bound, Bound::arithmetic);
  EXPECT_GT(plan::time(h200, product(Precision::bf16, 1, 8192, 8190, 640)).seconds, 3 * aligned.seconds);
  EXPECT_LT(plan::time(h200, product(Precision::fp32, 1, 8192, 8190, 640)).seconds,
            1.01 * plan::time(h200, product(Precision::fp32, 1, 8192, 8192, 640)).seconds);
}

TEST(KernelTime, OtherGpus) {
  const auto large = [](std::string_view key, Precision precision) {
    return plan::time(gpu(key), product(precision, 1, 8192, 8192, 8192)).seconds;
  };
  // The rates are shares of the vendor's figures: an A100 has 312 of 989, an RTX 4090 165.2.
  EXPECT_NEAR(large("a100", Precision::bf16) / large("h200", Precision::bf16), 989.0 / 312, 0.15);
  EXPECT_NEAR(large("rtx4090", Precision::bf16) / large("h200", Precision::bf16), 989.0 / 165.2, 0.3);
  EXPECT_NEAR(plan::time(gpu("l4"), stream(3e9)).seconds, 10e-3 / 0.9, 1e-5);
  // A GPU without a precision computes in the next wider one.
  EXPECT_EQ(large("t4", Precision::tf32), large("t4", Precision::fp32));
  EXPECT_LT(large("t4", Precision::fp16), large("t4", Precision::fp32) / 4);
  EXPECT_NEAR(large("t4", Precision::bf16) / large("t4", Precision::fp32), 1.0, 0.01);
  EXPECT_NEAR(large("v100", Precision::bf16) / large("v100", Precision::fp32), 1.0, 0.01);
  EXPECT_LT(large("v100", Precision::fp16), large("v100", Precision::fp32) / 4);
  EXPECT_NEAR(large("a100", Precision::fp8) / large("a100", Precision::bf16), 1.0, 0.01);
  EXPECT_LT(large("h100", Precision::fp8), 0.6 * large("h100", Precision::bf16));
}

TEST(StepTime, AKernelThatRunsSeveralTimesCountsAsOften) {
  const plan::Gpu h200 = gpu("h200");
  const std::vector<plan::Kernel> thrice(3, stream(1e9));
  plan::Kernel one = stream(1e9);
  one.times = 3;
  const plan::StepTime a = plan::time(h200, thrice, 5e-6), b = plan::time(h200, {&one, 1}, 5e-6);
  EXPECT_DOUBLE_EQ(a.gpu_seconds, b.gpu_seconds);
  EXPECT_DOUBLE_EQ(a.host_seconds, b.host_seconds);
  EXPECT_DOUBLE_EQ(a.seconds, b.seconds);
  EXPECT_EQ(plan::time(h200, one).seconds, plan::time(h200, thrice[0]).seconds);
}

TEST(StepTime, AddsUp) {
  const plan::Gpu h200 = gpu("h200");
  std::vector<plan::Kernel> kernels = {stream(1e9), product(Precision::bf16, 1, 4096, 4096, 4096), stream(8)};
  kernels[2].launches = 4;
  const plan::StepTime step = plan::time(h200, kernels, 5e-6);
  std::array<double, 3> one{};
  for (std::size_t i = 0; i < 3; ++i) one[i] = plan::time(h200, kernels[i]).seconds;
  EXPECT_DOUBLE_EQ(step.gpu_seconds, one[0] + one[1] + one[2]);
  EXPECT_EQ(step.by_bound, one);  // memory, arithmetic, launch
  EXPECT_DOUBLE_EQ(step.host_seconds, 6 * 5e-6);
  EXPECT_NEAR(step.seconds, step.gpu_seconds, 1e-6 * step.gpu_seconds);
  const plan::StepTime slow = plan::time(h200, kernels, 1e-3);
  EXPECT_NEAR(slow.seconds, slow.host_seconds, 1e-3 * slow.host_seconds);
  EXPECT_EQ(slow.gpu_seconds, step.gpu_seconds);
  // If both take equally long, a step takes longer than either, by the sixth root of two.
  const plan::StepTime alike = plan::time(h200, kernels, step.gpu_seconds / 6);
  EXPECT_DOUBLE_EQ(alike.host_seconds, alike.gpu_seconds);
  EXPECT_NEAR(alike.seconds, 1.1225 * alike.gpu_seconds, 1e-3 * alike.gpu_seconds);
  EXPECT_EQ(plan::time(h200, {}, 1e-5).seconds, 0.0);
  EXPECT_EQ(name(Bound::memory), "memory");
  EXPECT_EQ(name(Bound::arithmetic), "arithmetic");
  EXPECT_EQ(name(Bound::launch), "launch");
}

}  // namespace
}  // namespace test
