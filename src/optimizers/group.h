// A step over a fixed list of tensors: it checks them once and leaves the work to the backend of their
// device. Tests and benchmarks of single steps use it; the engine makes its backends itself.
//
// Memory: a Group keeps pointers, not data; they must stay valid until it is destroyed or rebound. Zero bytes
// are the initial state of every format.
// Streams: on a GPU every call works on the stream it is given and returns without waiting for it. A null
// stream is the device's default stream, as in the CUDA API.
// Errors: everything is checked before the first byte is written; a failed call changes no buffer.
// SPDX-License-Identifier: MIT
#pragma once

#include "optimizers/backend.h"

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace octavo {

class Group {
 public:
  // Checks every argument and buffer (null, alignment, overlap, and on a GPU whose memory it is).
  static Result<Group> create(const GroupConfig& config, std::span<const TensorArgs> tensors);

  // Calls on unchanged scalars, workspace and stream do not check their addresses again.
  Result<StepReport> step(const StepArgs& args);

  // New buffers for the same config; on error the group keeps its old ones.
  Status rebind(std::span<const TensorArgs> tensors);
  // New gradients of the same dtypes and sizes, one per tensor, in order. Cheaper than rebind, because
  // overlap with other buffers is not checked again.
  Status rebind_grads(std::span<const void* const> grads);

  [[nodiscard]] std::int64_t workspace_bytes() const { return backend_->workspace_bytes(); }
  [[nodiscard]] std::size_t size() const { return tensors_.size(); }

 private:
  Group() = default;
  Status check_workspace(std::span<const std::byte> workspace) const;

  GroupConfig config_;
  std::vector<TensorArgs> tensors_;
  std::unique_ptr<NormOps> work_;
  std::unique_ptr<StepBackend> backend_;
  const void* workspace_ = nullptr;  // these were checked by the last step
  std::array<const void*, 6> scalars_ = {};
  void* stream_ = nullptr;
};

}  // namespace octavo
