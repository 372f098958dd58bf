// SPDX-License-Identifier: MIT
#include "offload/batches.h"

#include "offload/staging.h"

#include <algorithm>

namespace octavo::offload {
namespace {

// A part of a state, and what kernels want of its address: vectors of codes and residuals, or an element.
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

// Gives every buffer of the batch its place.
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
