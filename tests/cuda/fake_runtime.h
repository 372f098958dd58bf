// A CUDA runtime without a GPU, for tests of the host part. The linker replaces the runtime's functions with
// these (--wrap, tests/CMakeLists.txt), so a test runs the library's own objects. Memory of a "GPU" is host
// memory, kernels do nothing, and a call that opens a context with the real runtime records the device.
// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace octavo::test {

// A graph that a stream is captured into. Its destruction calls the destructors of what it retains.
struct FakeGraph {
  unsigned long long number = 0;
  std::vector<std::pair<void*, cudaHostFn_t>> retained;
};

// A call of cublasLtMatmul.
struct FakeMatmul {
  const void *a = nullptr, *b = nullptr, *to = nullptr;
  std::map<int, std::uint32_t> alignments;  // by preference attribute, of the algorithm that was returned
};

struct FakeCuda {
  int devices = 2;
  int driver = 13000;
  int current = 0;         // of the only thread
  std::set<int> contexts;  // devices on which a context was opened
  std::map<std::string, int> calls;
  std::map<const void*, int> device_of;  // of pointers; all others are on `home`
  int home = 0;
  cudaError_t capture_error = cudaSuccess;
  FakeGraph* capturing = nullptr;  // the graph that all streams are captured into
  std::vector<FakeMatmul> matmuls;
  std::size_t heuristics = 0;  // the number of heuristic queries

  int count(const std::string& name) const;
};

// Returns the state of the fake; reset() restores its initial state.
FakeCuda& fake();
void reset();

void destroy(FakeGraph& graph);

}  // namespace octavo::test
