// The small kernels around a step: the table of tensors, the guard, and the step's constants where a scalar
// lives on the device.
// SPDX-License-Identifier: MIT
#include "cuda/element_io.cuh"
#include "cuda/kernels.h"
#include "formula/norm.h"

#include <cstring>

namespace octavo::cuda {
namespace {

// Kernel arguments may have 4 KB, and 32 KB since CUDA 12.1.
#if CUDART_VERSION >= 12010
constexpr int kPiece = 28 * 1024;
#else
constexpr int kPiece = 3584;
#endif
struct Piece {
  alignas(16) std::byte bytes[kPiece];
};
struct GradPiece {
  static constexpr int kCount = kPiece / 12;
  std::uint64_t grads[kCount];
  std::uint32_t index[kCount];
};

__global__ void upload_kernel(const __grid_constant__ Piece piece, void* to, int words) {
  const auto* from = reinterpret_cast<const uint4*>(piece.bytes);
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x))
    static_cast<uint4*>(to)[i] = from[i];
}

__global__ void upload_grads_kernel(const __grid_constant__ GradPiece piece, TensorEntry* entries,
                                    int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    entries[piece.index[i]].grad = reinterpret_cast<const void*>(piece.grads[i]);
}

__global__ void map_kernel(const TensorEntry* entries, std::int64_t tensors, std::int64_t count,
                           std::uint32_t* map) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  std::int64_t low = 0;
  std::int64_t high = tensors;  // the tensor is in [low, high)
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (entries[middle].first_unit <= i * kMapStep ? low : high) = middle;
  }
  map[i] = static_cast<std::uint32_t>(low);
}

__global__ void count_kernel(const __grid_constant__ formula::Order order, const TensorEntry* entries,
                             const std::uint32_t* map, std::uint32_t units, unsigned long long* count) {
  const auto factor = static_cast<float>(formula::unscale_of(order));
  const int lane = static_cast<int>(threadIdx.x & 31U);
  unsigned bad = 0;
  const auto check = [&](float g) {
    const std::uint32_t magnitude = __float_as_uint(g * factor) & 0x7FFFFFFFU;
    bad += magnitude > static_cast<std::uint32_t>(formula::kLargestSquarable) ? 1U : 0U;
  };
  // A map's entry and the units it stands for, at a time.
  const std::uint32_t stride = gridDim.x * (blockDim.x / 32) * kMapStep;
  for (std::uint32_t start = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * kMapStep; start < units;
       start += stride) {
    const TensorEntry* t = entries + map[start / kMapStep];
    for (std::uint32_t unit = start; unit < start + kMapStep && unit < units; ++unit) {
      while (t[1].first_unit <= unit) ++t;
      const int size = t->block > kTile ? t->block : kTile;
      const std::int64_t at = static_cast<std::int64_t>(unit - t->first_unit) * size;
      for (int i = 0; i < size; i += kTile) {
        const std::int64_t first = at + i + lane * kChunk;
        if (t->aligned != 0 && at + i + kTile <= t->numel) {
          float x[2 * kChunk];
          if (is_f32(t->grad_dtype)) {
            as_floats(load<uint4>(t->grad, first * 4), x);
            as_floats(load<uint4>(t->grad, first * 4 + 16), x + 4);
            as_floats(load<uint4>(t->grad, (first + kTile / 2) * 4), x + 8);
            as_floats(load<uint4>(t->grad, (first + kTile / 2) * 4 + 16), x + 12);
          } else {
            const auto low = load<uint4>(t->grad, first * 2);
            const auto high = load<uint4>(t->grad, (first + kTile / 2) * 2);
            unpack_halves(low, t->grad_dtype, x);
            unpack_halves(high, t->grad_dtype, x + kChunk);
          }
#pragma unroll
          for (const float one : x) check(one);
        } else {
          for (std::int64_t e = at + i + lane; e < at + i + kTile && e < t->numel; e += 32)
            check(load_one(t->grad, t->grad_dtype, e));
        }
      }
    }
  }
  bad = warp_sum(bad);
  if (lane == 0 && bad != 0) atomicAdd(count, static_cast<unsigned long long>(bad));
}

template <class Algo>
OCTAVO_HD Prepared prepared_of(const formula::Order& order, std::int64_t counted) {
  static_assert(sizeof(typename Algo::Consts) <= sizeof(Prepared::consts));
  const formula::Decision decision = formula::decide(order, counted);
  Prepared out{};
  const typename Algo::Consts c = formula::constants<Algo>(order, decision);
  memcpy(out.consts, &c, sizeof c);
  out.round_base = formula::round_base(order.seed, static_cast<std::uint64_t>(decision.step));
  out.skip = decision.report.skipped ? 1 : 0;
  out.in_range = 1;
  if constexpr (Algo::kDivides) {
    const Quotients quotients = Algo::quotients(c);
    out.in_range = in_range(quotients) ? 1 : 0;
    out.least_result = least_result(quotients);
  }
  formula::publish(order, decision);
  return out;
}

template <class Algo>
__global__ void prepare_kernel(const __grid_constant__ formula::Order order, const std::int64_t* counted,
                               Prepared* out) {
  *out = prepared_of<Algo>(order, counted != nullptr ? *counted : 0);
}

__global__ void publish_kernel(const Prepared* prepared, const AxesEntry* entries) {
  if (prepared != nullptr && prepared->skip != 0) return;
  const AxesEntry entry = entries[blockIdx.x];
  for (std::int64_t i = threadIdx.x; i < entry.count; i += blockDim.x)
    entry.to[i] = formula::canonical(scalar::F32(entry.from[i])).v;
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

const void* any_kernel() { return reinterpret_cast<const void*>(&map_kernel); }

cudaError_t upload(std::span<const std::byte> from, void* to, cudaStream_t stream) {
  for (std::size_t at = 0; at < from.size(); at += kPiece) {
    Piece piece;
    const std::size_t size = std::min<std::size_t>(kPiece, from.size() - at);
    memcpy(piece.bytes, from.data() + at, size);
    upload_kernel<<<1, 256, 0, stream>>>(piece, static_cast<std::byte*>(to) + at,
                                         static_cast<int>((size + 15) / 16));
  }
  return cudaGetLastError();
}

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
  map_kernel<<<blocks_for(count, 256), 256, 0, stream>>>(entries, tensors, count, map);
  return cudaGetLastError();
}

cudaError_t count_nonfinite(const formula::Order& order, const TensorEntry* entries, const std::uint32_t* map,
                            std::int64_t units, std::int64_t* count, int blocks, cudaStream_t stream) {
  constexpr int kCountThreads = 512;
  const auto grid = std::min<std::int64_t>(std::int64_t{4} * blocks, (units + 127) / 128);
  count_kernel<<<static_cast<unsigned>(grid), kCountThreads, 0, stream>>>(
      order, entries, map, static_cast<std::uint32_t>(units), reinterpret_cast<unsigned long long*>(count));
  return cudaGetLastError();
}

cudaError_t prepare(std::size_t algorithm, const formula::Order& order, const std::int64_t* counted,
                    Prepared* prepared, cudaStream_t stream) {
  return at_index(Algorithms{}, algorithm, [&](auto algo) {
    prepare_kernel<decltype(algo)><<<1, 1, 0, stream>>>(order, counted, prepared);
    return cudaGetLastError();
  });
}

Prepared prepare_on_host(std::size_t algorithm, const formula::Order& order) {
  return at_index(Algorithms{}, algorithm, [&](auto algo) { return prepared_of<decltype(algo)>(order, 0); });
}

cudaError_t publish_axes(const Prepared* prepared, const AxesEntry* entries, std::int64_t count,
                         cudaStream_t stream) {
  publish_kernel<<<static_cast<unsigned>(count), 1024, 0, stream>>>(prepared, entries);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
