// The host part of the gradient norm on a GPU: the table of gradients, which is in the caller's workspace
// like the table of a step (step/step_backend.cc), and the launch.
// SPDX-License-Identifier: MIT
#include "cuda/norm/norm.h"
#include "cuda/runtime/graph_use.h"
#include "cuda/runtime/runtime.h"
#include "cuda/runtime/upload.h"
#include "formula/norm.h"
#include "optimizers/backend.h"
#include "status/first_error.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace octavo {
namespace cuda {
namespace {

class CudaNorm final : public NormBackend {
 public:
  CudaNorm(int device, std::span<const GradView> grads) : device_(device) {
    std::vector<NormEntry> given;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const GradView& grad = grads[i];
      if (grad.numel > 0) place_.push_back(i);
      given.push_back({grad.data, grad.numel, static_cast<std::uint32_t>(chunks_), 0,
                       static_cast<std::uint32_t>(grad.dtype), 0});
      chunks_ += (grad.numel + formula::kNormChunk - 1) / formula::kNormChunk;
    }
    // Returns the sort key of a tensor: NormEntry expects tensors in this order.
    const auto rank = [&](std::size_t i) {
      const std::int64_t end = given[i].numel % formula::kNormChunk;
      return std::tuple(end == 0, given[i].dtype, -end);
    };
    std::ranges::stable_sort(place_, {}, rank);
    for (const std::size_t i : place_) {
      NormEntry& entry = entries_.emplace_back(given[i]);
      entry.first_full = full_chunks_;
      full_chunks_ += static_cast<std::uint32_t>(entry.numel / formula::kNormChunk);
      if (entry.numel % formula::kNormChunk != 0) ++tails_;
    }
    const auto nodes = static_cast<std::int64_t>(norm_nodes(static_cast<std::uint32_t>(chunks_)));
    entries_at_ = aligned(static_cast<std::int64_t>(sizeof(NormTotals)) + 4 * nodes);
    sums_at_ = entries_at_ + aligned(static_cast<std::int64_t>(entries_.size() * sizeof(NormEntry)));
    nodes_at_ = sums_at_ + aligned(8 * chunks_);
    workspace_bytes_ = nodes_at_ + 8 * nodes;
  }

  Status bind() {
    if (chunks_ > kMaxNormChunks) {
      return Status::invalid(
          "[grad_norm] grads: got over 2^47 elements, expected fewer; take the norms of several parts");
    }
    const DeviceScope scope(device_);
    const cudaError_t error = norm_warps(&warps_);
    return error == cudaSuccess ? Status() : norm_failed(error);
  }

  Status bind_grads(std::span<const void* const> grads) override {
    for (std::size_t i = 0; i < place_.size(); ++i) entries_[i].data = grads[place_[i]];
    table_at_ = nullptr;
    return {};
  }

  Status run(std::span<std::byte> workspace, GradNorm* out, void* stream_handle, int /*threads*/) override {
    auto* stream = static_cast<cudaStream_t>(stream_handle);
    const DeviceScope scope(device_);
    std::byte* const at = workspace.data();
    auto* totals = reinterpret_cast<NormTotals*>(at);
    auto* entries = reinterpret_cast<NormEntry*>(at + entries_at_);
    GraphUse use;
    cudaError_t error = graph_use(at, stream, use);
    if (error == cudaSuccess && (use.live || use.ended != table_ended_ || table_at_ != at)) {
      error = cudaMemsetAsync(at, 0, static_cast<std::size_t>(entries_at_), stream);
      if (error == cudaSuccess) error = upload(std::as_bytes(std::span(entries_)), entries, stream);
      table_at_ = error == cudaSuccess ? at : nullptr;
      table_ended_ = use.ended;
    }
    if (error == cudaSuccess) {
      error = norm({entries, static_cast<std::uint32_t>(entries_.size()), tails_, full_chunks_,
                    static_cast<std::uint32_t>(chunks_), 0, reinterpret_cast<double*>(at + sums_at_),
                    reinterpret_cast<double*>(at + nodes_at_),
                    reinterpret_cast<std::uint32_t*>(at + sizeof(NormTotals)), totals, out},
                   multiprocessors_, warps_, stream);
    }
    return error == cudaSuccess ? Status() : norm_failed(error);
  }

  Result<std::span<const double>> run_chunks(std::span<std::byte> workspace, GradNorm* out, void* stream,
                                             int threads) override {
    OCTAVO_TRY(run(workspace, out, stream, threads));
    return std::span(reinterpret_cast<const double*>(workspace.data() + sums_at_),
                     static_cast<std::size_t>(chunks_));
  }

  [[nodiscard]] std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  void forget_workspace() override { table_at_ = nullptr; }

 private:
  [[nodiscard]] Status norm_failed(cudaError_t error) const {
    return failed("[grad_norm] norm of " + std::to_string(entries_.size()) +
                      " gradients on cuda:" + std::to_string(device_),
                  error);
  }

  // The limit: each chunk has a double in the device's memory.
  static constexpr std::int64_t kMaxNormChunks = std::int64_t{1} << 31;

  const int device_;
  const int multiprocessors_ = multiprocessors(device_);
  int warps_ = 0;  // warps per multiprocessor
  std::vector<NormEntry> entries_;
  std::vector<std::size_t> place_;  // the number of each entry's gradient
  std::uint32_t full_chunks_ = 0, tails_ = 0;
  std::int64_t chunks_ = 0, entries_at_ = 0, sums_at_ = 0, nodes_at_ = 0, workspace_bytes_ = 0;
  const std::byte* table_at_ = nullptr;
  std::uint64_t table_ended_ = 0;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<NormBackend>> make_cuda_norm(int device, std::span<const GradView> grads) {
  OCTAVO_TRY(cuda::check_device("[grad_norm]", device));
  auto backend = std::make_unique<cuda::CudaNorm>(device, grads);
  OCTAVO_TRY(backend->bind());
  return std::unique_ptr<NormBackend>(std::move(backend));
}

}  // namespace octavo
