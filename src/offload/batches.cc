// SPDX-License-Identifier: MIT
#include "offload/batches.h"

#include "offload/staging.h"
#include "optimizers/format_resolution.h"

#include <algorithm>

namespace octavo::offload {
namespace {

// Chunks begin at multiples of this: complete blocks of every size, and complete vectors of every buffer.
constexpr std::int64_t kUnit = kMaxBlockSize;

bool is_divisible(const GroupConfig& config, const TensorSpec& spec) {
  return kRuleFacts[algorithm_index(config)].passes == 1 &&
         !has_rank1_scales(stored_format(spec.format, spec.ndim));
}

// Returns the chunk of the elements from `begin` to `end`. The elements before `begin`, and those before
// `end`, have the layout of a tensor of that size; the chunk is the difference.
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

// A chunk's part of a state, and the alignment that kernels need: a vector for codes and residuals, else an
// element.
struct Buffer {
  std::byte* host;
  ByteRange* part;
  std::int64_t alignment;
};

std::vector<Buffer> buffers_of(std::span<const TensorArgs> tensors, std::vector<Chunk>& chunks) {
  constexpr std::int64_t kVector = 16;
  std::vector<Buffer> buffers;
  const auto add = [&](void* whole, ByteRange& part, std::int64_t alignment) {
    if (part.bytes > 0) buffers.push_back({static_cast<std::byte*>(whole) + part.from, &part, alignment});
  };
  for (Chunk& chunk : chunks) {
    const TensorArgs& whole = tensors[chunk.tensor];
    add(whole.residual, chunk.residual, kVector);
    for (std::size_t s = 0; s < chunk.codes.size(); ++s) {
      add(whole.state[s].codes, chunk.codes[s], kVector);
      add(whole.state[s].scales, chunk.scales[s], sizeof(float));
    }
  }
  return buffers;
}

// Gives every buffer of the batch an offset in staging memory.
void lay_out(Batch& batch, std::span<const TensorArgs> tensors, DeviceQueues& queues) {
  std::vector<Buffer> buffers = buffers_of(tensors, batch.chunks);
  std::ranges::sort(buffers, std::less<>(), &Buffer::host);
  for (const Buffer& buffer : buffers) {
    ByteRange& part = *buffer.part;
    HostRange* range = batch.ranges.empty() ? nullptr : &batch.ranges.back();
    const bool adjacent = range != nullptr && range->host + range->bytes == buffer.host &&
                          range->bytes % buffer.alignment == 0 &&
                          queues.in_one_allocation(range->host, buffer.host);
    if (!adjacent) {
      range = &batch.ranges.emplace_back(HostRange{buffer.host, 0, Staging::aligned(batch.states_bytes)});
      batch.states_bytes = range->at;
    }
    part.at = range->at + range->bytes;
    range->bytes += part.bytes;
    batch.states_bytes += part.bytes;
  }
  batch.bytes = batch.states_bytes;
  for (Chunk& chunk : batch.chunks) {
    chunk.grad.at = Staging::aligned(batch.bytes);
    batch.bytes = chunk.grad.at + chunk.grad.bytes;
  }
}

}  // namespace

Result<std::vector<Batch>> make_batches(const GroupConfig& config, std::span<const TensorArgs> tensors,
                                        std::span<const std::size_t> order, std::int64_t most,
                                        DeviceQueues& queues) {
  std::vector<Batch> batches;
  std::int64_t filled = most;
  for (const std::size_t tensor : order) {
    const auto chunks = cut_tensor(config, tensor, tensors[tensor].spec, most);
    if (!chunks.ok()) return chunks.status();
    for (const Chunk& chunk : *chunks) {
      if (filled + chunk.bytes() > most) {
        batches.emplace_back();
        filled = 0;
      }
      batches.back().chunks.push_back(chunk);
      filled += chunk.bytes();
    }
  }
  for (Batch& batch : batches) lay_out(batch, tensors, queues);
  return batches;
}

TensorArgs chunk_args(const TensorArgs& whole, const Chunk& chunk, std::byte* base) {
  TensorArgs args;
  args.spec = chunk.spec;
  args.param = static_cast<std::byte*>(whole.param) + chunk.param.from;
  if (whole.grad != nullptr) args.grad = static_cast<const std::byte*>(whole.grad) + chunk.grad.from;
  if (chunk.residual.bytes > 0) args.residual = base + chunk.residual.at;
  for (std::size_t s = 0; s < chunk.codes.size(); ++s) {
    if (chunk.codes[s].bytes > 0) args.state[s].codes = base + chunk.codes[s].at;
    if (chunk.scales[s].bytes > 0) args.state[s].scales = reinterpret_cast<float*>(base + chunk.scales[s].at);
  }
  args.id = whole.id;
  args.offset = whole.offset + chunk.begin;
  return args;
}

}  // namespace octavo::offload
