// Tracks which CUDA graphs write into which workspaces. A replay writes a table of tensors into the workspace
// of the captured step without the host, so an earlier table may have been overwritten.
// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

struct GraphUse {
  // A graph writes into the workspace: one that is being captured, or one that can still be replayed. Tables
  // must be written at every step.
  bool live = false;
  // How many times a graph stopped using a workspace, in this process. A table that was written at another
  // count may have been overwritten by a last replay.
  std::uint64_t ended = 0;
};

// Reads the use of a workspace. If the stream is being captured, records the workspace for the graph until
// the graph and its executable copies are destroyed. If the capture status cannot be queried, returns an
// error, records nothing, and `use.live` is true.
cudaError_t graph_use(const void* workspace, cudaStream_t stream, GraphUse& use);

}  // namespace octavo::cuda
