// A CUDA runtime without a GPU, for tests of the host's part. The linker puts its functions in the place of
// the runtime's (--wrap, tests/CMakeLists.txt), so a test runs the library's own objects. Memory of a "GPU"
// is the host's, kernels do nothing, and a call that opens a context with the real runtime notes the device.
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

// A graph that a stream is captured into. Destroying it calls the destructors of what it retains.
struct FakeGraph {
  unsigned long long number = 0;
  std::vector<std::pair<void*, cudaHostFn_t>> retained;
};

// A call of cublasLtMatmul.
struct FakeMatmul {
  const void *a = nullptr, *b = nullptr, *to = nullptr;
  std::map<int, std::uint32_t> alignments;  // by preference attribute, of the algorithm that was proposed
};

struct FakeCuda {
  int devices = 2;
  int driver = 13000;
  int current = 0;         // of the only thread
  std::set<int> contexts;  // devices on which a context was opened
  std::map<std::string, int> calls;
  std::map<const void*, int> device_of;  // of pointers; others are on `home`
  int home = 0;
  cudaError_t capture_error = cudaSuccess;
  FakeGraph* capturing = nullptr;  // by all streams
  std::vector<FakeMatmul> matmuls;
  std::size_t heuristics = 0;  // proposals that were asked for

  int count(const std::string& name) const;
};

// The state of the fake; reset() makes it new.
FakeCuda& fake();
void reset();

void destroy(FakeGraph& graph);

}  // namespace octavo::test
