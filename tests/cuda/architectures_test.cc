// Tests what CMAKE_CUDA_ARCHITECTURES=release builds, by CUDA version: every device finds code that it can
// run, and none that needs more shared memory than the device has. Also tests which architectures a GPU can
// emulate (src/cuda/runtime/arch.h).
// SPDX-License-Identifier: MIT
#include "cuda/runtime/arch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace {

// Compute capability as in __CUDA_ARCH__, and the bytes of shared memory that a block may request (CUDA C++
// Programming Guide, "Technical Specifications per Compute Capability").
struct Device {
  int arch;
  int shared;
};
constexpr Device kDevices[] = {{750, 64 * 1024},  {800, 163 * 1024},  {860, 99 * 1024},   {890, 99 * 1024},
                               {900, 227 * 1024}, {1000, 227 * 1024}, {1030, 227 * 1024}, {1100, 227 * 1024},
                               {1200, 99 * 1024}, {1210, 99 * 1024}};

// Returns the code that a driver chooses: machine code of the same major version and no newer minor,
// otherwise the newest PTX.
int code_for(int device, const std::string& list) {
  int real = 0;
  int ptx = 0;
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    const int arch = 10 * std::stoi(word);
    if (arch > device) continue;
    const bool machine = word.ends_with("-real");
    EXPECT_TRUE(machine || word.ends_with("-virtual")) << word;
    if (machine && arch / 100 == device / 100) real = std::max(real, arch);
    if (!machine) ptx = std::max(ptx, arch);
  }
  return real != 0 ? real : ptx;
}

TEST(CudaArchitectures, EveryDeviceFindsCodeThatFits) {
  std::ifstream file(OCTAVO_TEST_RELEASES);
  int releases = 0;
  for (std::string line; std::getline(file, line); ++releases) {
    const std::string list = line.substr(line.find(':') + 1);
    for (const Device& device : kDevices) {
      const int code = code_for(device.arch, list);
      ASSERT_GT(code, 0) << "nothing for " << device.arch << " in " << line;
      EXPECT_LE(octavo::cuda::shared_limit(code), device.shared)
          << device.arch << " runs " << code << " of " << line;
    }
  }
  EXPECT_EQ(releases, 6);
}

// The code of a device fits the device and uses all of it.
TEST(CudaArchitectures, LimitsAreTheDevices) {
  for (const Device& device : kDevices)
    EXPECT_EQ(octavo::cuda::shared_limit(device.arch), device.shared) << device.arch;
}

// A build can emulate an architecture on another GPU unless that needs instructions or shared memory that the
// GPU lacks.
TEST(CudaArchitectures, WaysThatOneCanGo) {
  using octavo::cuda::can_go_as;
  for (const Device& device : kDevices) {
    EXPECT_TRUE(can_go_as(device.arch, device.arch)) << device.arch;
    EXPECT_TRUE(can_go_as(900, device.arch)) << device.arch;
    EXPECT_EQ(can_go_as(750, device.arch), device.arch == 750) << device.arch;
    EXPECT_EQ(can_go_as(1200, device.arch), device.shared <= 99 * 1024) << device.arch;
  }
  EXPECT_FALSE(can_go_as(860, 890));  // fp8
  EXPECT_FALSE(can_go_as(890, 800));  // shared memory
  EXPECT_TRUE(can_go_as(890, 860));
}

// A branch that a source chooses without kArch could not be tested on another GPU.
TEST(CudaArchitectures, NothingElseAsksTheCompiler) {
  const std::filesystem::path root = OCTAVO_TEST_SOURCES;
  int asking = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.find("if __CUDA_ARCH__") == std::string::npos &&
        text.find("defined(__CUDA_ARCH__)") == std::string::npos)
      continue;
    ++asking;
    EXPECT_EQ(std::filesystem::relative(entry.path(), root), "cuda/runtime/arch.h") << "ask kArch there";
  }
  EXPECT_EQ(asking, 1);
}

}  // namespace
