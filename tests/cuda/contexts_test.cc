// Tests on which GPUs the library opens a CUDA context: on the GPUs that the caller uses, and on no other.
// SPDX-License-Identifier: MIT
#include "cuda/runtime/runtime.h"
#include "offload/pin.h"
#include "optimizers/backend.h"
#include "tests/cuda/fake_runtime.h"

#include <octavo/backend.h>
#include <octavo/fp8.h>
#include <octavo/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace {

using octavo::test::fake;
using testing::ElementsAre;
using testing::IsEmpty;

// A thread that never chose a device has device 0 as its current one.
class Contexts : public testing::Test {
 protected:
  void SetUp() override {
    octavo::test::reset();
    fake().devices = 3;
    fake().home = 1;
  }
};

TEST_F(Contexts, ListsOfGpusOpenNone) {
  EXPECT_TRUE(octavo::has_cuda());
  const octavo::GpuReport report = octavo::list_gpus();
  ASSERT_EQ(report.gpus.size(), 3U);
  EXPECT_EQ(report.gpus[2].name, "NVIDIA H200");
  EXPECT_EQ(report.gpus[2].multiprocessors, 132);
  EXPECT_THAT(fake().contexts, IsEmpty());
}

TEST_F(Contexts, OneGpuOpensItsOwn) {
  const auto gpu = octavo::gpu_info(1);
  ASSERT_TRUE(gpu.ok()) << gpu.status().message();
  EXPECT_TRUE(gpu->usable) << gpu->note;
  EXPECT_THAT(fake().contexts, ElementsAre(1));
  EXPECT_EQ(octavo::gpu_info(3).status().message(), "[octavo] device: got cuda:3, expected cuda:0 to cuda:2");
}

TEST_F(Contexts, AReportOfAllOpensAll) {
  EXPECT_EQ(octavo::gpu_info().gpus.size(), 3U);
  EXPECT_THAT(fake().contexts, ElementsAre(0, 1, 2));
}

TEST_F(Contexts, Fp8IsLookedUpOnItsOwnGpu) {
  const octavo::Status status =
      octavo::fp8::supported({octavo::DeviceKind::cuda, 1}, octavo::fp8::Recipe::block);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(fake().contexts, ElementsAre(1));
}

TEST_F(Contexts, APlanForThisGpuOpensNone) {
  const auto gpu = octavo::plan::find_gpu("this:2");
  ASSERT_TRUE(gpu.ok()) << gpu.status().message();
  EXPECT_EQ(gpu->device, 2);
  EXPECT_THAT(fake().contexts, IsEmpty());
}

TEST_F(Contexts, AScopeOpensItsOwn) {
  {
    const octavo::cuda::DeviceScope scope(1);
    EXPECT_EQ(fake().current, 1);
  }
  EXPECT_THAT(fake().contexts, ElementsAre(1));
}

TEST_F(Contexts, AScopeRestoresADeviceThatIsInUse) {
  fake().contexts = {0};
  { const octavo::cuda::DeviceScope scope(1); }
  EXPECT_EQ(fake().current, 0);
}

// Restoring device 0 would open a context there.
TEST_F(Contexts, AScopeKeepsItsDeviceWhereThePreviousOneIsNotInUse) {
  { const octavo::cuda::DeviceScope scope(1); }
  EXPECT_EQ(fake().current, 1);
}

TEST_F(Contexts, ScopesLookUpTheDriversFunctionOnce) {
  fake().contexts = {0};
  { const octavo::cuda::DeviceScope scope(1); }
  EXPECT_LE(fake().count("cuDevicePrimaryCtxGetState"), 1);  // an earlier test may have looked it up
  octavo::test::reset();
  fake().devices = 3;
  fake().contexts = {0};
  for (int i = 0; i < 3; ++i) {
    const octavo::cuda::DeviceScope scope(1);
  }
  EXPECT_EQ(fake().count("cuDevicePrimaryCtxGetState"), 0);
  EXPECT_EQ(fake().count("cudaSetDevice"), 6);
}

TEST_F(Contexts, ChecksOfArgumentsUseTheTensorsGpu) {
  const int value = 0;
  EXPECT_TRUE(octavo::cuda::check_device("[test]", 1).ok());
  EXPECT_TRUE(octavo::cuda::check_pointer("[test] data", &value, 1).ok());
  EXPECT_TRUE(octavo::cuda::check_stream("[test] ", reinterpret_cast<cudaStream_t>(0x100), 1).ok());
  EXPECT_THAT(fake().contexts, ElementsAre(1));
}

TEST_F(Contexts, PointersOfAnotherGpuAreRefused) {
  const int value = 0;
  fake().home = 2;
  EXPECT_EQ(octavo::cuda::check_pointer("[test] data", &value, 1).message(),
            "[test] data: got memory of cuda:2, expected memory of cuda:1");
}

TEST_F(Contexts, PinnedMemoryUsesAGpuThatIsInUse) {
  fake().contexts = {2};
  int value = 0;
  EXPECT_TRUE(octavo::offload::pin_pages(&value, sizeof value).ok());
  octavo::offload::unpin_pages(&value);
  EXPECT_EQ(fake().count("cudaHostRegister"), 1);
  EXPECT_EQ(fake().count("cudaHostUnregister"), 1);
  EXPECT_THAT(fake().contexts, ElementsAre(2));
}

TEST_F(Contexts, TheEnginesWorkUsesItsOwn) {
  auto work = octavo::make_cuda_norm_ops("[test]", 1);
  ASSERT_TRUE(work.ok()) << work.status().message();
  octavo::GradNorm norm;
  EXPECT_FALSE((*work)->capturing(nullptr));
  EXPECT_TRUE((*work)->clear(&norm, nullptr).ok());
  EXPECT_THAT(fake().contexts, ElementsAre(1));
}

}  // namespace
