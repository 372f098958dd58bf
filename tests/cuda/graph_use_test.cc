// How long a workspace counts as a graph's: as long as the graph can be replayed.
// SPDX-License-Identifier: MIT
#include "cuda/graph_use.h"
#include "cuda/fake_runtime.h"
#include "optimizers/backend.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>

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
  EXPECT_NE(use_of(memory_.data()).ended, before);  // what a last replay wrote is not trusted
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
  auto work = octavo::make_cuda_work("[test]", 0);
  ASSERT_TRUE(work.ok()) << work.status().message();
  fake().capture_error = cudaErrorStreamCaptureImplicit;
  EXPECT_TRUE((*work)->in_graph(memory_.data(), nullptr));  // for this step, which fails
  fake().capture_error = cudaSuccess;
  EXPECT_FALSE((*work)->in_graph(memory_.data(), nullptr));
}

}  // namespace
