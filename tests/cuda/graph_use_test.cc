// Tests how long a workspace belongs to a graph: as long as the graph can be replayed.
// SPDX-License-Identifier: MIT
#include "cuda/runtime/graph_use.h"
#include "optimizers/backend.h"
#include "optimizers/group.h"
#include "tests/cuda/fake_runtime.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace {

using octavo::cuda::GraphUse;
using octavo::test::fake;
using octavo::test::FakeGraph;

GraphUse use_of(const void* workspace) {
  GraphUse use;
  EXPECT_EQ(octavo::cuda::graph_use(workspace, nullptr, use), cudaSuccess);
  return use;
}

class GraphUses : public testing::Test {
 protected:
  void SetUp() override { octavo::test::reset(); }
  void capture(FakeGraph& graph, const void* workspace) {
    fake().capturing = &graph;
    EXPECT_TRUE(use_of(workspace).live);
    fake().capturing = nullptr;
  }
  std::array<std::byte, 2> memory_{};
};

TEST_F(GraphUses, AWorkspaceIsFreeAgainWhenItsGraphIsDestroyed) {
  FakeGraph graph{7, {}};
  const std::uint64_t before = use_of(memory_.data()).ended;
  EXPECT_FALSE(use_of(memory_.data()).live);
  capture(graph, memory_.data());
  EXPECT_TRUE(use_of(memory_.data()).live);
  EXPECT_FALSE(use_of(memory_.data() + 1).live);
  EXPECT_EQ(use_of(memory_.data()).ended, before);
  destroy(graph);
  EXPECT_FALSE(use_of(memory_.data()).live);
  EXPECT_NE(use_of(memory_.data()).ended,
            before);  // a table that a last replay may have written is not trusted
}

TEST_F(GraphUses, TheLastOfTwoGraphsFreesIt) {
  FakeGraph one{8, {}}, other{9, {}};
  capture(one, memory_.data());
  capture(other, memory_.data());
  destroy(one);
  EXPECT_TRUE(use_of(memory_.data()).live);
  destroy(other);
  EXPECT_FALSE(use_of(memory_.data()).live);
}

TEST_F(GraphUses, SeveralStepsInAGraphAreNotedOnce) {
  FakeGraph graph{10, {}};
  capture(graph, memory_.data());
  capture(graph, memory_.data());
  EXPECT_EQ(graph.retained.size(), 1U);
  destroy(graph);
  EXPECT_FALSE(use_of(memory_.data()).live);
}

TEST_F(GraphUses, AFailedQueryIsNotACapture) {
  auto work = octavo::make_cuda_norm_ops("[test]", 0);
  ASSERT_TRUE(work.ok()) << work.status().message();
  fake().capture_error = cudaErrorStreamCaptureImplicit;
  EXPECT_TRUE((*work)->in_graph(memory_.data(), nullptr));  // for this step, which fails
  fake().capture_error = cudaSuccess;
  EXPECT_FALSE((*work)->in_graph(memory_.data(), nullptr));
}

// A step writes its table when the workspace is new, as long as a graph uses it, and once after that.
TEST_F(GraphUses, AStepWritesItsTableOnceMoreAfterAGraph) {
  constexpr std::size_t kSize = 64;
  std::array<std::vector<float>, 4> memory;
  for (auto& each : memory) each.resize(kSize);
  octavo::TensorArgs tensor;
  tensor.spec.numel = kSize;
  tensor.param = memory[0].data();
  tensor.grad = memory[1].data();
  tensor.state[0].codes = memory[2].data();
  tensor.state[1].codes = memory[3].data();
  octavo::GroupConfig config;
  config.device = {octavo::DeviceKind::cuda, 0};
  auto group = octavo::Group::create(config, std::span(&tensor, 1));
  ASSERT_TRUE(group.ok()) << group.status().message();
  struct alignas(256) Room : std::array<std::byte, 65536> {};
  const auto room = std::make_unique<Room>();
  ASSERT_LE(group->workspace_bytes(), std::ssize(*room));
  octavo::StepArgs args;
  args.step = 1;
  args.workspace = *room;
  const auto launches = [&] {
    const int before = fake().count("cudaLaunchKernel");
    const auto done = group->step(args);
    EXPECT_TRUE(done.ok()) << done.status().message();
    return fake().count("cudaLaunchKernel") - before;
  };
  const int all = launches();
  EXPECT_GT(all, 1);
  EXPECT_EQ(launches(), 1);
  FakeGraph graph{11, {}};
  fake().capturing = &graph;
  EXPECT_EQ(launches(), all);
  fake().capturing = nullptr;
  EXPECT_EQ(launches(), all);
  EXPECT_EQ(launches(), all);
  destroy(graph);
  EXPECT_EQ(launches(), all);
  EXPECT_EQ(launches(), 1);
}

}  // namespace
