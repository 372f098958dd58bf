// Limits of machines and containers, read from files as they are there.
// SPDX-License-Identifier: MIT
#include "offload/host_limits.h"

#include <octavo/offload.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

namespace octavo::offload {
namespace {

namespace fs = std::filesystem;

class Root {
 public:
  Root() : path_(fs::temp_directory_path() / ("octavo_limits_" + std::to_string(getpid()))) {
    fs::remove_all(path_);
  }
  ~Root() { fs::remove_all(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

constexpr const char* kMemory = "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:   1000 kB\n";

TEST(Limits, NothingSaysALimit) {
  const Root root;
  EXPECT_EQ(available_memory(root.path()), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(cpu_quota(root.path()), std::numeric_limits<int>::max());
}

TEST(Limits, OfTheMachine) {
  const Root root;
  root.write("proc/meminfo", kMemory);
  root.write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(available_memory(root.path()), 1024 * 1000);
  root.write("sys/fs/cgroup/memory.max", "max\n");
  root.write("sys/fs/cgroup/memory.current", "5\n");
  root.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(available_memory(root.path()), 1024 * 1000);
  EXPECT_EQ(cpu_quota(root.path()), std::numeric_limits<int>::max());
}

TEST(Limits, OfAContainerAndThoseAroundIt) {
  const Root root;
  root.write("proc/meminfo", kMemory);
  root.write("proc/self/cgroup", "0::/pod/run\n");
  root.write("sys/fs/cgroup/pod/run/memory.max", "500000\n");
  root.write("sys/fs/cgroup/pod/run/memory.current", "200000\n");
  root.write("sys/fs/cgroup/pod/run/cpu.max", "350000 100000\n");
  EXPECT_EQ(available_memory(root.path()), 300000);
  EXPECT_EQ(cpu_quota(root.path()), 3);
  root.write("sys/fs/cgroup/pod/run/memory.stat", "anon 7\ninactive_file 50000\nactive_file 1\n");
  EXPECT_EQ(available_memory(root.path()), 350000);
  root.write("sys/fs/cgroup/pod/memory.max", "400000\n");
  root.write("sys/fs/cgroup/pod/memory.current", "300000\n");
  root.write("sys/fs/cgroup/pod/cpu.max", "50000 100000\n");
  EXPECT_EQ(available_memory(root.path()), 100000);
  EXPECT_EQ(cpu_quota(root.path()), 1);
  root.write("sys/fs/cgroup/pod/memory.high", "310000\n");
  EXPECT_EQ(available_memory(root.path()), 10000);
  root.write("sys/fs/cgroup/pod/memory.current", "900000\n");
  EXPECT_EQ(available_memory(root.path()), 0);
}

// A container that sees its own group as the mount, under a path that is the host's.
TEST(Limits, WhereThePathIsNotThere) {
  const Root root;
  root.write("proc/self/cgroup", "0::/../kubepods/x\n");
  root.write("sys/fs/cgroup/memory.max", "500\n");
  root.write("sys/fs/cgroup/memory.current", "100\n");
  EXPECT_EQ(available_memory(root.path()), 400);
}

TEST(Limits, OfTheFirstVersion) {
  const Root root;
  root.write("proc/meminfo", kMemory);
  root.write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n");
  EXPECT_EQ(available_memory(root.path()), 1024 * 1000);
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "600000\n");
  root.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "200000\n");
  root.write("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(available_memory(root.path()), 500000);
  EXPECT_EQ(cpu_quota(root.path()), 4);
}

// One CPU is the framework's; who sets the pool's size to less is given just that.
TEST(Limits, ThreadsOfTheCpusStep) {
  EXPECT_EQ(host_threads_of(16, 16), 15);
  EXPECT_EQ(host_threads_of(16, 4), 3);
  EXPECT_EQ(host_threads_of(4, 16), 4);
  EXPECT_EQ(host_threads_of(2, 1), 1);
  EXPECT_EQ(host_threads_of(1, 1), 1);
  EXPECT_EQ(host_threads(7), 7);
  EXPECT_GE(host_threads(), 1);
}

TEST(Limits, OfThisProcess) {
  EXPECT_GT(host_room(), 1 << 20);
  EXPECT_GE(cpu_quota("/"), 1);
}

}  // namespace
}  // namespace octavo::offload
