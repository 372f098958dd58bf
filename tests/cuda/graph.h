// Captures a CUDA graph of the work that a function queues, in the strictest mode: an allocation or a wait
// fails it.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/cuda/device.h"

#include <octavo/status.h>

#include <stdexcept>
#include <string>

namespace test {

class Graph {
 public:
  // REQUIRES: `work` queues on `stream` only.
  template <class Fn>
  Graph(cudaStream_t stream, Fn&& work) {
    OCTAVO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    octavo::Status status;
    try {
      status = work();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph_);
      throw;
    }
    const cudaError_t error = cudaStreamEndCapture(stream, &graph_);
    if (!status.ok()) throw std::runtime_error("in a capture: " + status.message());
    cuda_check(error, "cudaStreamEndCapture");
    OCTAVO_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  ~Graph() {
    if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { OCTAVO_CUDA(cudaGraphLaunch(exec_, stream)); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace test
