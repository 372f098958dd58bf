// SPDX-License-Identifier: MIT
#include "offload/chunks.h"

#include "optimizers/resolve.h"

#include <algorithm>

namespace octavo::offload {
namespace {

// Pieces begin at multiples of this: whole blocks of every size, and whole vectors of every buffer.
constexpr std::int64_t kUnit = kMaxBlockSize;

bool is_divisible(const GroupConfig& config, const TensorSpec& spec) {
  return kRuleFacts[algorithm_index(config)].passes == 1 &&
         !has_axis_scales(stored_format(spec.format, spec.ndim));
}

// The elements from `begin` to `end`. What is before `begin` has the layout of a tensor of that size, and so
// has what is before `end`; the difference is the chunk.
Result<Chunk> chunk_of(const GroupConfig& config, std::size_t tensor, const TensorSpec& whole,
                       std::int64_t begin, std::int64_t end) {
  const auto first = [&](std::int64_t count) {
    TensorSpec spec = whole;
    if (count == whole.numel) return spec;
    spec.numel = count;
    spec.ndim = 0;
    spec.shape = {};
    return spec;
  };
  const auto before = layout(config, first(begin));
  const auto upto = layout(config, first(end));
  if (!before.ok()) return before.status();
  if (!upto.ok()) return upto.status();
  Chunk chunk;
  chunk.tensor = tensor;
  chunk.begin = begin;
  chunk.spec = first(end - begin);
  chunk.first = begin == 0;
  chunk.last = end == whole.numel;
  const auto part = [](std::int64_t from, std::int64_t to) { return ByteRange{from, to - from, 0}; };
  for (std::size_t s = 0; s < static_cast<std::size_t>(upto->slots); ++s) {
    chunk.codes[s] = part(before->slot[s].codes_bytes, upto->slot[s].codes_bytes);
    chunk.scales[s] = part(4 * before->slot[s].scales, 4 * upto->slot[s].scales);
  }
  chunk.residual = part(before->residual_bytes, upto->residual_bytes);
  const auto elements = [&](DType dtype) {
    return part(begin * dtype_bytes(dtype), end * dtype_bytes(dtype));
  };
  chunk.param = elements(whole.param_dtype);
  chunk.grad = elements(whole.grad_dtype);
  return chunk;
}

}  // namespace

Result<std::vector<Chunk>> cut_tensor(const GroupConfig& config, std::size_t tensor, const TensorSpec& spec,
                                      std::int64_t most) {
  std::vector<Chunk> chunks;
  if (spec.numel == 0) return chunks;
  auto whole = chunk_of(config, tensor, spec, 0, spec.numel);
  if (!whole.ok()) return whole.status();
  const std::int64_t count = (whole->bytes() + most - 1) / most;
  if (count <= 1 || !is_divisible(config, spec)) {
    chunks.push_back(*whole);
    return chunks;
  }
  const std::int64_t even = (spec.numel + count - 1) / count;
  const std::int64_t step = (even + kUnit - 1) / kUnit * kUnit;
  for (std::int64_t begin = 0; begin < spec.numel; begin += step) {
    auto chunk = chunk_of(config, tensor, spec, begin, std::min(begin + step, spec.numel));
    if (!chunk.ok()) return chunk.status();
    chunks.push_back(*chunk);
  }
  return chunks;
}

}  // namespace octavo::offload
