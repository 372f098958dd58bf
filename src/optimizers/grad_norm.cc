// The norm over many tensors: chunks in parallel, then a fixed tree over the chunks.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"
#include "cpu/threads.h"
#include "optimizers/resolve.h"

#include <octavo/grad_norm.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

namespace octavo {
namespace {

std::int64_t chunks_of(std::int64_t numel) { return (numel + cpu::kNormChunk - 1) / cpu::kNormChunk; }

// Pairs of neighbours, level by level: depends on the number of chunks alone.
double tree_sum(std::span<double> values) {
  for (std::size_t size = values.size(); size > 1; size = (size + 1) / 2) {
    for (std::size_t i = 0; i < size / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    if ((size & 1) != 0) values[size / 2] = values[size - 1];
  }
  return values.empty() ? 0.0 : values[0];
}

}  // namespace

std::int64_t grad_norm_workspace(std::span<const GradView> grads) {
  std::int64_t total = 0;
  for (const GradView& grad : grads) total += chunks_of(std::max<std::int64_t>(0, grad.numel));
  return total;
}

Result<GradNorm> grad_norm(std::span<const GradView> grads, std::span<double> workspace, int threads) {
  std::vector<std::int64_t> first;  // chunk of each tensor, and the end
  first.reserve(grads.size() + 1);
  std::int64_t chunks = 0;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const GradView& grad = grads[i];
    const std::string where = "[grad_norm] grads[" + std::to_string(i) + "]";
    TensorSpec spec;
    spec.numel = grad.numel;
    spec.grad_dtype = grad.dtype;
    if (Status bad = check_spec(where, spec); !bad.ok()) return bad;
    const std::int64_t size = dtype_bytes(grad.dtype);
    if (Status bad = check_buffer(where + ".data", grad.data, grad.numel * size, size); !bad.ok()) return bad;
    first.push_back(chunks);
    chunks += chunks_of(grad.numel);
  }
  first.push_back(chunks);
  if (static_cast<std::int64_t>(workspace.size()) < chunks) {
    return Status::invalid("[grad_norm] workspace: got " + std::to_string(workspace.size()) +
                           " doubles, expected " + std::to_string(chunks) + " (grad_norm_workspace)");
  }
  if (Status bad = check_buffer("[grad_norm] workspace", workspace.data(), 8 * chunks, 8); !bad.ok())
    return bad;
  const auto sums = std::as_bytes(workspace.first(static_cast<std::size_t>(chunks)));
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const auto* begin = static_cast<const std::byte*>(grads[i].data);
    if (grads[i].numel > 0 && !sums.empty() && begin < sums.data() + sums.size() &&
        sums.data() < begin + grads[i].numel * dtype_bytes(grads[i].dtype)) {
      return Status::invalid("[grad_norm] workspace: overlaps grads[" + std::to_string(i) +
                             "].data; it must not share memory with a gradient");
    }
  }
  if (threads < 0 || threads > 4096) {
    return Status::invalid("[grad_norm] threads: got " + std::to_string(threads) + ", expected 0 to 4096");
  }
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();

  const cpu::FloatMode mode;
  std::atomic<std::uint32_t> max_bits{0};
  std::atomic<std::int64_t> nonfinite{0};
  auto body = [&](std::int64_t chunk) {
    const auto tensor =
        static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), chunk) - first.begin()) - 1;
    const std::int64_t begin = (chunk - first[tensor]) * cpu::kNormChunk;
    const std::int64_t count = std::min(cpu::kNormChunk, grads[tensor].numel - begin);
    const cpu::NormPart part =
        (*kernels)->norm(grads[tensor].data, grads[tensor].dtype, begin, count, 1.0F, &cpu::thread_scratch());
    workspace[static_cast<std::size_t>(chunk)] = part.sum;
    for (std::uint32_t old = max_bits.load();
         old < part.max_bits && !max_bits.compare_exchange_weak(old, part.max_bits);) {
    }
    nonfinite += part.nonfinite;
  };
  cpu::parallel_for(chunks, threads, body);

  GradNorm out;
  out.l2 = std::sqrt(tree_sum(workspace.first(static_cast<std::size_t>(chunks))));
  const float max = std::bit_cast<float>(max_bits.load());
  out.max = static_cast<double>(formula::canonical(scalar::F32(max)).v);
  out.nonfinite = nonfinite;
  return out;
}

double clip_factor(double l2, double max_norm, double unscale) {
  const double ratio = max_norm / (l2 * std::fabs(unscale) + 1e-6);
  return (ratio > 1.0 ? 1.0 : ratio) * unscale;  // NaN stays NaN
}

}  // namespace octavo
