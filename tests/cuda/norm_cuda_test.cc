// Tests that the gradient norm on the GPU has the CPU's bits. A NaN must only be a NaN: its bits are not
// specified.
// SPDX-License-Identifier: MIT
#include "optimizers/norm_group.h"
#include "tests/cuda/device.h"
#include "tests/reference/formats.h"
#include "tests/support/random.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace test {
namespace {

using octavo::DType;
using octavo::GradNorm;
using octavo::GradView;

class NormCuda : public GpuTest {};

struct HostGrads {
  std::vector<Buffer> buffers;
  std::vector<GradView> views;

  void add(DType dtype, const std::vector<float>& values) {
    add(dtype, values, static_cast<std::int64_t>(views.size() % 7));
  }
  // `phase`: elements from a multiple of 64 bytes to the first.
  void add(DType dtype, const std::vector<float>& values, std::int64_t phase) {
    const std::int64_t bytes = octavo::dtype_bytes(dtype);
    const auto numel = static_cast<std::int64_t>(values.size());
    Buffer buffer(numel * bytes, bytes * phase);
    for (std::int64_t i = 0; i < numel; ++i)
      reference::store_nearest(dtype, buffer.data(), i, values[usize(i)]);
    views.push_back({buffer.data(), dtype, numel});
    buffers.push_back(std::move(buffer));
  }

  [[nodiscard]] GradNorm norm() const {
    std::vector<double> workspace(usize(octavo::grad_norm_workspace(views)));
    return octavo::grad_norm(views, workspace, 0).value();
  }
};

// Copies the gradients to the device, with the same distance from a multiple of 64.
struct DeviceCopy {
  DeviceMemory memory{Memory::together};
  std::vector<GradView> views;

  DeviceCopy(const HostGrads& host, cudaStream_t stream) : views(host.views) {
    for (const Buffer& buffer : host.buffers) {
      const auto phase = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64);
      const std::size_t slot = memory.add(buffer.size(), phase);
      if (buffer.size() > 0) std::memcpy(memory.host(slot), buffer.data(), usize(buffer.size()));
    }
    memory.upload(stream);
    for (std::size_t i = 0; i < views.size(); ++i) views[i].data = memory.device(i);
  }
};

std::string norm_text(const GradNorm& n) {
  char line[160];
  std::snprintf(line, sizeof line, "l2 %a (%016llx), max %a, nonfinite %lld", n.l2,
                static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(n.l2)), n.max,
                static_cast<long long>(n.nonfinite));
  return line;
}
bool same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}
std::string norm_difference(const GradNorm& got, const GradNorm& expected) {
  if (same(got.l2, expected.l2) && std::memcmp(&got.max, &expected.max, sizeof got.max) == 0 &&
      got.nonfinite == expected.nonfinite)
    return "";
  return "got " + norm_text(got) + "; expected " + norm_text(expected);
}

std::string run_norm(octavo::NormGroup& group, const DeviceWorkspace& workspace, cudaStream_t stream,
                     const GradNorm& expected) {
  const OnDevice<GradNorm> out(GradNorm{-1.0, -1.0, -1}, stream);
  if (const octavo::Status status = group.run(workspace.span(), out.get(), stream); !status.ok())
    return status.message();
  const GradNorm got = out.value(stream);
  if (!workspace.surroundings_intact(stream)) return "bytes around the workspace changed";
  return norm_difference(got, expected);
}

std::string compare(const HostGrads& host, cudaStream_t stream) {
  const DeviceCopy device(host, stream);
  auto group = octavo::NormGroup::create(kGpu, device.views);
  if (!group.ok()) return group.status().message();
  const DeviceWorkspace workspace(group->workspace_bytes());
  const GradNorm expected = host.norm();
  // The norm runs twice: the second time it finds its table in the workspace.
  std::string difference = run_norm(*group, workspace, stream, expected);
  if (!difference.empty()) return "first run: " + difference;
  difference = run_norm(*group, workspace, stream, expected);
  return difference.empty() ? "" : "second run: " + difference;
}

TEST_F(NormCuda, EqualsTheCpu) {
  const Stream stream;
  Tally tally;
  for (const DType dtype : octavo::all_dtypes()) {
    for (const int spread : {2, 30, 100}) {
      HostGrads all;
      std::uint64_t seed = 1;
      for (const std::int64_t numel : {0, 1, 15, 16, 17, 31, 255, 256, 257, 4095, 4097, 65535, 65536, 65537,
                                       131071, 131072, 131073, 200001}) {
        HostGrads one;
        const std::vector<float> values = spread_values(numel, seed++, spread);
        one.add(dtype, values);
        all.add(dtype, values);
        tally.add(std::string(octavo::name(dtype)) + ", " + std::to_string(numel) + " elements",
                  compare(one, stream));
      }
      tally.add(std::string(octavo::name(dtype)) + ", all sizes", compare(all, stream));
    }
  }
}

TEST_F(NormCuda, ManyTensors) {
  const Stream stream;
  Tally tally;
  for (const std::int64_t count : {2, 3, 1000, 2047, 2049, 5000}) {
    HostGrads grads;
    for (std::int64_t i = 0; i < count; ++i)
      grads.add(octavo::all_dtypes()[usize(i % 3)],
                spread_values(i * 13 % 97, static_cast<std::uint64_t>(i), 20));
    tally.add(std::to_string(count) + " tensors", compare(grads, stream));
  }
  HostGrads nothing;
  tally.add("no tensors", compare(nothing, stream));
  nothing.add(DType::f32, {});
  nothing.add(DType::bf16, {});
  tally.add("empty tensors", compare(nothing, stream));
}

// The sixteen sums of a chunk follow its elements, wherever it begins and ends among the vectors in memory.
TEST_F(NormCuda, EveryOffset) {
  const Stream stream;
  Tally tally;
  for (const DType dtype : octavo::all_dtypes()) {
    const std::int64_t places = 64 / octavo::dtype_bytes(dtype);
    for (std::int64_t phase = 0; phase < places; ++phase) {
      HostGrads all;
      auto seed = static_cast<std::uint64_t>(phase) * 100;
      for (const std::int64_t numel :
           {std::int64_t{1}, places - phase, places - phase + 1, std::int64_t{500}, 65536 + phase}) {
        HostGrads one;
        const std::vector<float> values = spread_values(numel, seed++, 30);
        if (numel < 1000) {
          one.add(dtype, values, phase);
          tally.add(std::string(octavo::name(dtype)) + ", " + std::to_string(numel) + " elements from " +
                        std::to_string(phase) + " on",
                    compare(one, stream));
        }
        all.add(dtype, values, phase);
      }
      tally.add(std::string(octavo::name(dtype)) + ", all sizes from " + std::to_string(phase) + " on",
                compare(all, stream));
    }
  }
}

// A warp processes chunks of different lengths and types together.
TEST_F(NormCuda, SmallTensorsAroundALargeOne) {
  const Stream stream;
  Tally tally;
  for (const DType large : octavo::all_dtypes()) {
    HostGrads grads;
    for (std::int64_t i = 0; i < 3000; ++i) {
      if (i == 1234) grads.add(large, spread_values(3'000'001, 5, 30), 3);
      grads.add(octavo::all_dtypes()[usize(i * i % 3)],
                spread_values(i % 50 == 0 ? i * 40 : i % 70, static_cast<std::uint64_t>(i), 30), i % 31);
    }
    tally.add(std::string(octavo::name(large)), compare(grads, stream));
  }
}

TEST_F(NormCuda, CountsWhatIsNotFinite) {
  const Stream stream;
  Tally tally;
  const float last = std::bit_cast<float>(0x5F7FFFFFu);  // the largest whose square is finite
  const float next = std::bit_cast<float>(0x5F800000u);
  for (const DType dtype : octavo::all_dtypes()) {
    for (const std::int64_t numel : {1, 9, 40, 70000}) {
      for (const std::int64_t at : {std::int64_t{0}, numel / 2, numel - 1}) {
        for (const float value : {last, -last, next, -next, INFINITY, -INFINITY, NAN, -NAN, -0.0f, 1e-45f}) {
          HostGrads grads;
          std::vector<float> values(usize(numel), 0.5f);
          values[usize(at)] = value;
          grads.add(dtype, values);
          tally.add(std::string(octavo::name(dtype)) + ", " + std::to_string(value) + " at " +
                        std::to_string(at) + " of " + std::to_string(numel),
                    compare(grads, stream));
        }
      }
    }
    // The ends of a chunk of an unaligned tensor, and those of a vector.
    for (const std::int64_t phase : {1, 7, 8, 15}) {
      for (const std::int64_t at : {0, 1, 16, 65535 - 16, 65535, 65536, 65537, 70001, 70002}) {
        for (const float value : {next, INFINITY, NAN}) {
          HostGrads grads;
          std::vector<float> values(70003, 0.5f);
          values[usize(at)] = value;
          grads.add(dtype, values, phase);
          tally.add(std::string(octavo::name(dtype)) + " from " + std::to_string(phase) + " on, " +
                        std::to_string(value) + " at " + std::to_string(at),
                    compare(grads, stream));
        }
      }
    }
    HostGrads mixed;
    std::vector<float> values(100000, 1.0f);
    for (std::size_t i = 0; i < values.size(); i += 10) values[i] = i % 20 == 0 ? NAN : INFINITY;
    mixed.add(dtype, values);
    mixed.add(dtype, values);
    EXPECT_EQ(mixed.norm().nonfinite, 20000);
    tally.add("many", compare(mixed, stream));
    HostGrads any;
    any.add(dtype, any_finite_values(200000, 4));
    tally.add("any finite", compare(any, stream));
  }
}

TEST_F(NormCuda, RebindAndAnotherWorkspace) {
  const Stream stream;
  HostGrads small;
  HostGrads large;
  for (std::int64_t i = 0; i < 40; ++i) {
    small.add(DType::bf16, spread_values(i * 5, 3, 4));
    large.add(DType::f32, spread_values(i * 5000, 4, 4));
  }
  const DeviceCopy small_copy(small, stream);
  const DeviceCopy large_copy(large, stream);
  auto group = octavo::NormGroup::create(kGpu, small_copy.views);
  ASSERT_TRUE(group.ok()) << group.status().message();
  const DeviceWorkspace first(group->workspace_bytes());
  EXPECT_EQ(run_norm(*group, first, stream, small.norm()), "");
  ASSERT_TRUE(group->rebind(large_copy.views).ok());
  const DeviceWorkspace second(group->workspace_bytes());
  const DeviceWorkspace third(group->workspace_bytes());
  EXPECT_EQ(run_norm(*group, second, stream, large.norm()), "");
  EXPECT_EQ(run_norm(*group, third, stream, large.norm()), "");
  EXPECT_EQ(run_norm(*group, second, stream, large.norm()), "");
  ASSERT_TRUE(group->rebind(small_copy.views).ok());
  EXPECT_EQ(run_norm(*group, second, stream, small.norm()), "");
  std::vector<GradView> bad = small_copy.views;
  bad.back().data = small.views.back().data;  // host memory
  EXPECT_FALSE(group->rebind(bad).ok());
  EXPECT_EQ(run_norm(*group, second, stream, small.norm()), "");
}

}  // namespace
}  // namespace test
