// SPDX-License-Identifier: MIT
#include "offload/grad_sums.h"

#include "cpu/implementations.h"
#include "cpu/threads.h"
#include "optimizers/norm_chunks.h"

#include <algorithm>
#include <cstring>

namespace octavo::offload {
namespace {

// Calls before(first element, elements, scratch) for every norm chunk, and then sums the chunk.
template <class Before>
void for_chunks(const cpu::Kernels& kernels, const GradView& grad, GradSums* sums, int threads,
                Before&& before) {
  if (sums != nullptr) sums->chunks.resize(static_cast<std::size_t>(chunks_of(grad.numel)));
  std::atomic<std::uint32_t> max_bits{0};
  std::atomic<std::int64_t> nonfinite{0};
  auto body = [&](std::int64_t chunk, cpu::Scratch& scratch) {
    const std::int64_t begin = chunk * formula::kNormChunk;
    const std::int64_t count = std::min(formula::kNormChunk, grad.numel - begin);
    before(begin, count, scratch);
    if (sums == nullptr) return;
    const cpu::NormPart part = kernels.norm(grad.data, grad.dtype, begin, count, 1.0F, &scratch);
    sums->chunks[static_cast<std::size_t>(chunk)] = part.sum;
    raise_maximum(max_bits, part.max_bits);
    nonfinite += part.nonfinite;
  };
  cpu::parallel_for(chunks_of(grad.numel), threads, body);
  if (sums == nullptr) return;
  sums->max_bits = max_bits;
  sums->nonfinite = nonfinite;
}

}  // namespace

Status add_gradient(void* to, DType to_dtype, const void* from, DType from_dtype, std::int64_t numel,
                    bool first, GradSums* sums, int threads) {
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();
  const bool same = first && to_dtype == from_dtype;
  const std::int64_t size = dtype_bytes(to_dtype);
  const auto add = [&](std::int64_t at, std::int64_t count, cpu::Scratch& scratch) {
    if (same) {
      std::memcpy(static_cast<std::byte*>(to) + at * size, static_cast<const std::byte*>(from) + at * size,
                  static_cast<std::size_t>(count * size));
    } else {
      (*kernels)->add({to, from, to_dtype, from_dtype, at, count, first, &scratch});
    }
  };
  for_chunks(**kernels, {to, to_dtype, numel}, sums, threads, add);
  return {};
}

Status sum_gradient(const GradView& grad, GradSums& sums, int threads) {
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();
  for_chunks(**kernels, grad, &sums, threads, [](std::int64_t, std::int64_t, cpu::Scratch&) {});
  return {};
}

GradNorm join_sums(std::span<double> all, std::uint32_t max_bits, std::int64_t nonfinite) {
  return join_chunks(all, max_bits, nonfinite);
}

}  // namespace octavo::offload
