// Tests find_gpu() with every spelling, with sizes and with invalid texts.
// SPDX-License-Identifier: MIT
#include <octavo/backend.h>
#include <octavo/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace test {
namespace {

namespace plan = octavo::plan;
using plan::Precision;
using ::testing::HasSubstr;

std::string key_of(std::string_view text) {
  const octavo::Result<plan::Gpu> found = plan::find_gpu(text);
  return found.ok() ? found->key : found.status().message();
}
double flops(const plan::Gpu& gpu, Precision precision) {
  return gpu.flops[static_cast<std::size_t>(precision)];
}

TEST(Gpus, EveryOneIsWhole) {
  std::set<std::string> keys, names;
  for (const plan::Gpu& gpu : plan::known_gpus()) {
    SCOPED_TRACE(gpu.key);
    EXPECT_TRUE(keys.insert(gpu.key).second);
    EXPECT_TRUE(names.insert(gpu.name).second);
    EXPECT_EQ(key_of(gpu.key), gpu.key);
    EXPECT_EQ(key_of(gpu.name), gpu.key);
    for (const char c : gpu.key) EXPECT_TRUE((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
    EXPECT_GE(10 * gpu.compute_major + gpu.compute_minor, 70);
    EXPECT_GE(gpu.multiprocessors, 28);
    // Memory is between the size in GiB minus the driver's part and slightly more than the size in GB.
    EXPECT_GT(gpu.memory, gpu.gigabytes * 0.91 * (1 << 30));
    EXPECT_LE(gpu.memory, gpu.gigabytes * 1.08e9);
    EXPECT_GT(gpu.context, 300 << 20);
    EXPECT_LT(gpu.context, 800 << 20);
    EXPECT_GE(gpu.bandwidth, 300e9);
    EXPECT_LE(gpu.bandwidth, 8e12);
    EXPECT_GT(gpu.cache, 0);
    EXPECT_GT(gpu.host_bandwidth, 10e9);
    EXPECT_GE(gpu.peer_bandwidth, 10e9);
    EXPECT_GT(flops(gpu, Precision::fp32), 0);
    EXPECT_GT(flops(gpu, Precision::fp16), flops(gpu, Precision::fp32));
    const bool ampere = gpu.compute_major >= 8;
    EXPECT_EQ(flops(gpu, Precision::bf16) > 0, ampere);
    EXPECT_EQ(flops(gpu, Precision::tf32) > 0, ampere);
    EXPECT_EQ(flops(gpu, Precision::fp8) > 0, 10 * gpu.compute_major + gpu.compute_minor >= 89);
  }
  EXPECT_GE(keys.size(), 34u);
}

TEST(Gpus, AnH200) {
  const plan::Gpu gpu = plan::find_gpu("h200").value();
  EXPECT_EQ(gpu.memory, 150109880320);
  EXPECT_EQ(gpu.bandwidth, 4.8e12);
  EXPECT_EQ(flops(gpu, Precision::bf16), 989e12);
  EXPECT_EQ(flops(gpu, Precision::fp8), 1979e12);
  EXPECT_EQ(gpu.multiprocessors, 132);
  EXPECT_EQ(gpu.gigabytes, 141);
  EXPECT_EQ(gpu.context, 630 << 20);
}

// A V100 has no tensor cores for bf16 and tf32: both are planned at the rate of fp32.
TEST(Gpus, AV100) {
  const plan::Gpu gpu = plan::find_gpu("v100").value();
  EXPECT_EQ(gpu.compute_major, 7);
  EXPECT_EQ(gpu.compute_minor, 0);
  EXPECT_EQ(gpu.gigabytes, 16);
  EXPECT_EQ(gpu.bandwidth, 900e9);
  EXPECT_EQ(flops(gpu, Precision::fp32), 15.7e12);
  EXPECT_EQ(flops(gpu, Precision::fp16), 125e12);
  EXPECT_EQ(flops(gpu, Precision::bf16), 0);
  EXPECT_EQ(flops(gpu, Precision::tf32), 0);
  EXPECT_EQ(plan::find_gpu("v100-32gb")->gigabytes, 32);
}

TEST(Gpus, Spellings) {
  for (const char* text : {"h200", "H200", "NVIDIA H200", "nvidia_h200", "H200 SXM", "h200-141GB"}) {
    EXPECT_EQ(key_of(text), "h200") << text;
  }
  for (const char* text :
       {"RTX 4090", "rtx_4090", "rtx-4090", "4090", "NVIDIA GeForce RTX 4090", " rtx4090 "}) {
    EXPECT_EQ(key_of(text), "rtx4090") << text;
  }
  for (const char* text : {"h100", "h100-80gb", "H100 SXM", "NVIDIA H100 80GB HBM3"}) {
    EXPECT_EQ(key_of(text), "h100") << text;
  }
  EXPECT_EQ(key_of("NVIDIA H100 PCIe"), "h100pcie");
  EXPECT_EQ(key_of("NVIDIA H100 NVL"), "h100nvl");
  EXPECT_EQ(key_of("NVIDIA A100-SXM4-80GB"), "a100");
  EXPECT_EQ(key_of("NVIDIA A100-SXM4-40GB"), "a100-40gb");
  EXPECT_EQ(key_of("NVIDIA A100-PCIE-40GB"), "a100pcie-40gb");
  EXPECT_EQ(key_of("NVIDIA A100 80GB PCIe"), "a100pcie");
  EXPECT_EQ(key_of("a100 40GB"), "a100-40gb");
  EXPECT_EQ(key_of("NVIDIA RTX A6000"), "a6000");
  EXPECT_EQ(key_of("RTX 6000 Ada"), "rtx6000ada");
  EXPECT_EQ(key_of("NVIDIA RTX PRO 6000 Blackwell Workstation Edition"), "rtxpro6000");
  EXPECT_EQ(key_of("Tesla T4"), "t4");
  EXPECT_EQ(key_of("NVIDIA L4"), "l4");
  EXPECT_EQ(key_of("L40"), "l40");
  EXPECT_EQ(key_of("NVIDIA A10G"), "a10g");
  EXPECT_EQ(key_of("RTX 3080 12GB"), "rtx3080-12gb");
  EXPECT_EQ(key_of("NVIDIA GH200 480GB"), "gh200");
  for (const char* text : {"v100", "V100", "V100 16GB", "V100 SXM2", "Tesla V100-SXM2-16GB"})
    EXPECT_EQ(key_of(text), "v100") << text;
  for (const char* text : {"V100 32GB", "v100-32gb", "Tesla V100-SXM2-32GB"})
    EXPECT_EQ(key_of(text), "v100-32gb") << text;
  for (const char* text : {"rtx4070tisuper", "RTX 4070 Ti SUPER", "NVIDIA GeForce RTX 4070 Ti SUPER"})
    EXPECT_EQ(key_of(text), "rtx4070tisuper") << text;
  EXPECT_EQ(key_of("RTX 4070 Ti"), "rtx4070ti");
  for (const char* text : {"b100", "NVIDIA B100", "B100 192GB"}) EXPECT_EQ(key_of(text), "b100") << text;
}

TEST(Gpus, Sizes) {
  // The slowest GPU by bandwidth times fp16 rate: an L4 of 24 GB, an A100 PCIe of 80.
  for (const char* text : {"24GB", "24 GiB", "24g", "24.0gb"}) EXPECT_EQ(key_of(text), "l4") << text;
  EXPECT_EQ(key_of("80GB"), "a100pcie");
  EXPECT_EQ(key_of("16GB"), "t4");
  EXPECT_EQ(key_of("12gb"), "rtx3060");
  EXPECT_EQ(key_of("141GB"), "h200");
  EXPECT_EQ(key_of("32GB"), "v100-32gb");
  EXPECT_EQ(key_of("180GB"), "b100");
  // No GPU has 8 or 20 GB: the slowest of the larger ones is used.
  const plan::Gpu eight = plan::find_gpu("8GB").value(), whole = plan::find_gpu("rtx3060").value();
  EXPECT_EQ(eight.key, "8gb");
  EXPECT_EQ(eight.name, "NVIDIA GeForce RTX 3060 12 GB with 8 GB");
  EXPECT_EQ(eight.memory, whole.memory * 8 / 12);
  EXPECT_EQ(eight.gigabytes, 8);
  EXPECT_EQ(eight.bandwidth, whole.bandwidth);
  const plan::Gpu twenty = plan::find_gpu("22.5 GB").value();
  EXPECT_EQ(twenty.key, "22.5gb");
  EXPECT_THAT(twenty.name, HasSubstr("NVIDIA L4 with 22.5 GB"));
  EXPECT_NEAR(static_cast<double>(twenty.memory),
              static_cast<double>(plan::find_gpu("l4").value().memory) * 22.5 / 24, 1.0);
}

TEST(Gpus, Mistakes) {
  for (const char* text :
       {"", " ", "nvidia", "h900", "24", "24MB", "GB", "-24GB", "1.2.3GB", "rtx", "h200x"}) {
    const octavo::Result<plan::Gpu> found = plan::find_gpu(text);
    ASSERT_FALSE(found.ok()) << text;
    EXPECT_EQ(found.status().code(), octavo::StatusCode::invalid_argument);
    EXPECT_THAT(found.status().message(),
                HasSubstr("[plan] gpu: got '" + std::string(text) + "', expected one of b200,"));
    EXPECT_THAT(found.status().message(), HasSubstr("v100-32gb; or a size such as 24GB; or this"));
  }
  for (const char* text : {"0GB", "0.5GB", "181GB", "99999999999999999999999999GB"}) {
    EXPECT_EQ(key_of(text), "[plan] gpu: got '" + std::string(text) + "', expected a size from 1GB to 180GB");
  }
}

TEST(Gpus, ANumberOfThisMachinesIsANumber) {
  for (const char* text : {"this:", "this:x", "this:1x", "this:-1", "this: 1", "that:1"})
    EXPECT_THAT(plan::find_gpu(text).status().message(), HasSubstr("or a size such as 24GB; or this"))
        << text;
}

TEST(Gpus, ThisMachines) {
  const octavo::GpuReport report = octavo::gpu_info();
  const octavo::Result<plan::Gpu> found = plan::find_gpu("This");
  if (report.gpus.empty()) {
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), octavo::StatusCode::unsupported);
    EXPECT_THAT(found.status().message(), HasSubstr(report.note));
    EXPECT_THAT(found.status().message(), HasSubstr("this machine has none"));
    EXPECT_THAT(found.status().message(), HasSubstr("a size such as 24GB"));
    EXPECT_THAT(plan::find_gpu("this:1").status().message(), HasSubstr("got 'this:1', but this machine"));
  } else if (found.ok()) {
    EXPECT_EQ(plan::find_gpu("this:0")->memory, found->memory);
    EXPECT_THAT(plan::find_gpu("this:99").status().message(), HasSubstr("expected this:0 to this:"));
    EXPECT_EQ(found->memory, report.gpus[0].memory_bytes);
    EXPECT_EQ(found->multiprocessors, report.gpus[0].multiprocessors);
  } else {
    EXPECT_THAT(found.status().message(), HasSubstr(report.gpus[0].name));
  }
}

}  // namespace
}  // namespace test
