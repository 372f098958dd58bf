// Which CUDA graphs write into which workspaces. A replay writes a table of tensors into the workspace of the
// step that was captured, and the host does not notice, so a table that was written earlier may be gone.
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

// Reads the use of a workspace. If the stream is being captured, notes the workspace as the graph's, until
// the graph and its executable copies are destroyed. An error where the capture status cannot be queried:
// nothing is noted, and `use.live` is true.
cudaError_t graph_use(const void* workspace, cudaStream_t stream, GraphUse& use);

}  // namespace octavo::cuda
