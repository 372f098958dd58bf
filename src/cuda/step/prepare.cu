// The small kernels around a step: the table of tensors, and the step's constants if a scalar is on the
// device.
// SPDX-License-Identifier: MIT
#include "cuda/runtime/runtime.h"
#include "cuda/runtime/upload.h"
#include "cuda/step/kernels.h"

#include <cstring>

namespace octavo::cuda {
namespace {

struct GradPiece {
  static constexpr int kCount = kPiece / 12;
  std::uint64_t grads[kCount];
  std::uint32_t index[kCount];
};

__global__ void upload_grads_kernel(const __grid_constant__ GradPiece piece, TensorEntry* entries,
                                    int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    entries[piece.index[i]].grad = reinterpret_cast<const void*>(piece.grads[i]);
}

template <bool kPanels>
__global__ void map_kernel(const TensorEntry* entries, std::int64_t tensors, std::int64_t count,
                           std::uint32_t* map) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  std::int64_t low = 0;
  std::int64_t high = tensors;  // the tensor is in [low, high)
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    const std::uint32_t first = kPanels ? entries[middle].rank1.first_panel : entries[middle].first_unit;
    (first <= i * kMapStep ? low : high) = middle;
  }
  map[i] = static_cast<std::uint32_t>(low);
}

template <class Algo>
OCTAVO_HD Prepared prepared_of(const formula::StepInputs& inputs, std::int64_t counted) {
  static_assert(sizeof(typename Algo::Consts) <= sizeof(Prepared::consts));
  const formula::Decision decision = formula::decide(inputs, counted);
  Prepared out{};
  const typename Algo::Consts c = formula::constants<Algo>(inputs, decision);
  memcpy(out.consts, &c, sizeof c);
  out.round_base = formula::round_base(inputs.seed, static_cast<std::uint64_t>(decision.step));
  out.skip = decision.report.skipped ? 1 : 0;
  out.in_range = 1;
  if constexpr (Algo::kDivides) {
    const Quotients quotients = Algo::quotients(c);
    out.in_range = in_range(quotients) ? 1 : 0;
    out.least_result = least_result(quotients);
  }
  formula::publish(inputs, decision);
  return out;
}

template <class Algo>
__global__ void prepare_kernel(const __grid_constant__ formula::StepInputs inputs,
                               const std::int64_t* counted, Prepared* out) {
  *out = prepared_of<Algo>(inputs, counted != nullptr ? *counted : 0);
}

__global__ void advance_kernel(const Prepared* prepared, std::int64_t* const* counts, std::int64_t count) {
  if (prepared->skip != 0) return;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) ++*counts[i];
}

unsigned blocks_for(std::int64_t count, int threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

}  // namespace

const StepKernel& step_kernel(std::size_t algorithm, StateFormat format, WeightKind kind) {
  const KernelRow* row =
      at_index(Algorithms{}, algorithm, [](auto rule) { return &kernel_row<decltype(rule)>(); });
  return (*row)[static_cast<std::size_t>(format)][static_cast<std::size_t>(kind)];
}

const void* any_kernel() { return reinterpret_cast<const void*>(&map_kernel<false>); }

cudaError_t upload_grads(std::span<const std::uint32_t> index, std::span<const void* const> grads,
                         TensorEntry* entries, cudaStream_t stream) {
  for (std::size_t at = 0; at < index.size(); at += GradPiece::kCount) {
    GradPiece piece;
    const std::size_t count = std::min<std::size_t>(GradPiece::kCount, index.size() - at);
    for (std::size_t i = 0; i < count; ++i) {
      piece.grads[i] = reinterpret_cast<std::uint64_t>(grads[at + i]);
      piece.index[i] = index[at + i];
    }
    upload_grads_kernel<<<1, 256, 0, stream>>>(piece, entries, static_cast<int>(count));
  }
  return cudaGetLastError();
}

cudaError_t build_map(const TensorEntry* entries, std::int64_t tensors, std::int64_t units,
                      std::uint32_t* map, cudaStream_t stream) {
  const std::int64_t count = (units + kMapStep - 1) / kMapStep;
  map_kernel<false><<<blocks_for(count, 256), 256, 0, stream>>>(entries, tensors, count, map);
  return cudaGetLastError();
}
cudaError_t build_panel_map(const TensorEntry* entries, std::int64_t tensors, std::int64_t panels,
                            std::uint32_t* map, cudaStream_t stream) {
  const std::int64_t count = (panels + kMapStep - 1) / kMapStep;
  map_kernel<true><<<blocks_for(count, 256), 256, 0, stream>>>(entries, tensors, count, map);
  return cudaGetLastError();
}

cudaError_t prepare(std::size_t algorithm, const formula::StepInputs& inputs, const std::int64_t* counted,
                    Prepared* prepared, cudaStream_t stream) {
  return at_index(Algorithms{}, algorithm, [&](auto algo) {
    prepare_kernel<decltype(algo)><<<1, 1, 0, stream>>>(inputs, counted, prepared);
    return cudaGetLastError();
  });
}

cudaError_t advance(const Prepared* prepared, std::int64_t* const* counts, std::int64_t count,
                    cudaStream_t stream) {
  constexpr int kThreads = 256;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  advance_kernel<<<blocks, kThreads, 0, stream>>>(prepared, counts, count);
  return cudaGetLastError();
}

Prepared prepare_on_host(std::size_t algorithm, const formula::StepInputs& inputs) {
  return at_index(Algorithms{}, algorithm, [&](auto algo) { return prepared_of<decltype(algo)>(inputs, 0); });
}

}  // namespace octavo::cuda
