// The host's interface to the kernels of the CUDA backend.
// SPDX-License-Identifier: MIT
#pragma once

#include "core/builtin_registry.h"
#include "cuda/step/tensor_table.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <span>

namespace octavo::cuda {

// The storage of a parameter, as far as kernels know it at compile time. bf16 and fp16 are distinguished at
// run time.
enum class WeightKind { f32, half, stochastic, residual8, residual16 };
inline constexpr int kWeightKinds = 5;

struct StepKernel {
  const void* kernel = nullptr;  // has StepParams as its argument
  // Returns the shared memory for the architecture that the kernel was compiled for, at one block per
  // multiprocessor.
  int (*shared_bytes)(int arch) = nullptr;
  int (*threads)(int arch) = nullptr;
  int (*shared_start)(int arch) = nullptr;  // the alignment of its shared memory; 0: any
  bool quick = true;                        // has a vectorized path
  int goes_as = 0;                          // the emulated architecture; 0: that of its code
  std::int64_t block = 0;                   // the block size that it knows at compile time
  std::uint32_t together = 1;               // units that a warp processes at a time while there are many
  const void* trust_ratio = nullptr;  // the first of two passes, of the same shape; null: there is one pass
  // For rank-1 scales: the pass that finds the new maxima, and the step by panels (null: the kernel has
  // none).
  const StepKernel* rank1 = nullptr;
  const StepKernel* panels = nullptr;
};
// The kernels of one rule of update: every format with every kind of weight. A rule without states has one
// kernel for all formats. Each rule is compiled separately (rule.cu).
using KernelRow = std::array<std::array<StepKernel, kWeightKinds>, Formats::kSize>;
template <class Rule>
const KernelRow& kernel_row();
// `algorithm` is an index into Algorithms.
const StepKernel& step_kernel(std::size_t algorithm, StateFormat format, WeightKind kind);

// Sets entries[index[i]].grad to grads[i], in stream order. The addresses travel as kernel arguments.
cudaError_t upload_grads(std::span<const std::uint32_t> index, std::span<const void* const> grads,
                         TensorEntry* entries, cudaStream_t stream);
// Writes the tensor of every kMapStep-th unit, or panel.
cudaError_t build_map(const TensorEntry* entries, std::int64_t tensors, std::int64_t units,
                      std::uint32_t* map, cudaStream_t stream);
cudaError_t build_panel_map(const TensorEntry* entries, std::int64_t tensors, std::int64_t panels,
                            std::uint32_t* map, cudaStream_t stream);
// Counts the elements whose scaled gradient, or its square, is not finite.
cudaError_t count_nonfinite(const formula::StepInputs& inputs, const TensorEntry* entries,
                            const std::uint32_t* map, std::int64_t units, std::int64_t* count,
                            int multiprocessors, cudaStream_t stream);
// Decides on the device whether a step is applied, and with which constants.
cudaError_t prepare(std::size_t algorithm, const formula::StepInputs& inputs, const std::int64_t* counted,
                    Prepared* prepared, cudaStream_t stream);
// Computes the same on the host if no scalar is on the device.
Prepared prepare_on_host(std::size_t algorithm, const formula::StepInputs& inputs);
// Adds one to each count, unless the step was skipped.
cudaError_t advance(const Prepared* prepared, std::int64_t* const* counts, std::int64_t count,
                    cudaStream_t stream);
// For rules with a trust ratio: adds the sums of tiles by kTilesOfNode, adds those of each tensor's nodes in
// order, and writes the ratios into the table.
cudaError_t add_tiles(const Prepared* prepared, const formula::Sums* tiles, std::int64_t nodes,
                      formula::Sums* out, cudaStream_t stream);
cudaError_t add_nodes(const Prepared* prepared, const TensorEntry* entries, std::int64_t count,
                      formula::Sums* nodes, formula::Sums* out, cudaStream_t stream);
cudaError_t set_ratios(std::size_t algorithm, const StepParams& params, const formula::Sums* sums,
                       TensorEntry* entries, std::int64_t count, cudaStream_t stream);

// The kernels around the passes of a step whose `moments` have rank-1 scales. Before the passes, old maxima
// are folded into scales of rows and columns (Rank1View), and the memory for new ones is cleared. After the
// first pass, unless the step is skipped, the new maxima become the tensors' scales and, folded, the
// reciprocals that the second pass encodes with.
cudaError_t open_rank1(const TensorEntry* entries, std::int64_t count, const Rank1Slots& slots,
                       cudaStream_t stream);
cudaError_t close_rank1(const Prepared* prepared, const TensorEntry* entries, std::int64_t count,
                        const Rank1Slots& slots, cudaStream_t stream);

}  // namespace octavo::cuda
