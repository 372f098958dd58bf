// The norm over many tensors on the CPU: chunks in parallel, then a fixed tree over the chunks.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"
#include "cpu/threads.h"
#include "optimizers/backend.h"
#include "optimizers/norm_chunks.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace octavo {
namespace {

class CpuNorm final : public NormBackend {
 public:
  explicit CpuNorm(std::span<const GradView> grads) : grads_(grads.begin(), grads.end()) {
    first_.reserve(grads.size() + 1);
    std::int64_t chunks = 0;
    for (const GradView& grad : grads) {
      first_.push_back(chunks);
      chunks += chunks_of(grad.numel);
    }
    first_.push_back(chunks);
  }

  Status bind_grads(std::span<const void* const> grads) override {
    for (std::size_t i = 0; i < grads.size(); ++i) grads_[i].data = grads[i];
    return {};
  }

  Status run(std::span<std::byte> workspace, GradNorm* out, void* stream, int threads) override {
    const auto sums = run_chunks(workspace, out, stream, threads);
    if (!sums.ok()) return sums.status();
    out->l2 = std::sqrt(tree_sum({reinterpret_cast<double*>(workspace.data()), sums->size()}));
    return {};
  }

  // One double per chunk.
  Result<std::span<const double>> run_chunks(std::span<std::byte> workspace, GradNorm* out, void* /*stream*/,
                                             int threads) override {
    const auto kernels = cpu::kernels();
    if (!kernels.ok()) return kernels.status();

    const cpu::FloatMode mode;
    const std::int64_t chunks = first_.back();
    const std::span<double> sums{reinterpret_cast<double*>(workspace.data()),
                                 static_cast<std::size_t>(chunks)};
    std::atomic<std::uint32_t> max_bits{0};
    std::atomic<std::int64_t> nonfinite{0};
    auto body = [&](std::int64_t chunk, cpu::Scratch& scratch) {
      const auto tensor =
          static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), chunk) - first_.begin()) -
          1;
      const GradView& grad = grads_[tensor];
      const std::int64_t begin = (chunk - first_[tensor]) * cpu::kNormChunk;
      const std::int64_t count = std::min(cpu::kNormChunk, grad.numel - begin);
      const cpu::NormPart part = (*kernels)->norm(grad.data, grad.dtype, begin, count, 1.0F, &scratch);
      sums[static_cast<std::size_t>(chunk)] = part.sum;
      raise_maximum(max_bits, part.max_bits);
      nonfinite += part.nonfinite;
    };
    cpu::parallel_for(chunks, threads, body);

    *out = join_chunks({}, max_bits, nonfinite);
    return std::span<const double>(sums);
  }

  [[nodiscard]] std::int64_t workspace_bytes() const override { return 8 * first_.back(); }

 private:
  std::vector<GradView> grads_;
  std::vector<std::int64_t> first_;  // chunk of each tensor, and the end
};

}  // namespace

Result<std::unique_ptr<NormBackend>> make_cpu_norm(std::span<const GradView> grads) {
  return std::unique_ptr<NormBackend>(std::make_unique<CpuNorm>(grads));
}

}  // namespace octavo
