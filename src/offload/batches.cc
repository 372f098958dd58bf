// SPDX-License-Identifier: MIT
#include "offload/batches.h"

#include "offload/staging.h"

#include <algorithm>

namespace octavo::offload {
namespace {

// A part of a state, and what kernels want of its address: vectors of codes and residuals, or an element.
struct Buffer {
  std::byte* host;
  Part* part;
  std::int64_t alignment;
};

std::vector<Buffer> buffers_of(std::span<const TensorArgs> tensors, std::vector<Piece>& pieces) {
  constexpr std::int64_t kVector = 16;
  std::vector<Buffer> buffers;
  const auto add = [&](void* whole, Part& part, std::int64_t alignment) {
    if (part.bytes > 0) buffers.push_back({static_cast<std::byte*>(whole) + part.from, &part, alignment});
  };
  for (Piece& piece : pieces) {
    const TensorArgs& whole = tensors[piece.tensor];
    add(whole.residual, piece.residual, kVector);
    for (std::size_t s = 0; s < piece.codes.size(); ++s) {
      add(whole.state[s].codes, piece.codes[s], kVector);
      add(whole.state[s].scales, piece.scales[s], sizeof(float));
    }
  }
  return buffers;
}

// Gives every buffer of the batch its place.
void lay_out(Batch& batch, std::span<const TensorArgs> tensors, DeviceQueues& queues) {
  std::vector<Buffer> buffers = buffers_of(tensors, batch.pieces);
  std::ranges::sort(buffers, std::less<>(), &Buffer::host);
  for (const Buffer& buffer : buffers) {
    Part& part = *buffer.part;
    Run* run = batch.runs.empty() ? nullptr : &batch.runs.back();
    const bool beside = run != nullptr && run->host + run->bytes == buffer.host &&
                        run->bytes % buffer.alignment == 0 &&
                        queues.in_one_allocation(run->host, buffer.host);
    if (!beside) {
      run = &batch.runs.emplace_back(Run{buffer.host, 0, Staging::aligned(batch.states_bytes)});
      batch.states_bytes = run->at;
    }
    part.at = run->at + run->bytes;
    run->bytes += part.bytes;
    batch.states_bytes += part.bytes;
  }
  batch.bytes = batch.states_bytes;
  for (Piece& piece : batch.pieces) {
    piece.grad.at = Staging::aligned(batch.bytes);
    batch.bytes = piece.grad.at + piece.grad.bytes;
  }
}

}  // namespace

Result<std::vector<Batch>> gather(const GroupConfig& config, std::span<const TensorArgs> tensors,
                                  std::span<const std::size_t> order, std::int64_t most,
                                  DeviceQueues& queues) {
  std::vector<Batch> batches;
  std::int64_t filled = most;
  for (const std::size_t tensor : order) {
    const auto pieces = cut(config, tensor, tensors[tensor].spec, most);
    if (!pieces.ok()) return pieces.status();
    for (const Piece& piece : *pieces) {
      if (filled + piece.bytes() > most) {
        batches.emplace_back();
        filled = 0;
      }
      batches.back().pieces.push_back(piece);
      filled += piece.bytes();
    }
  }
  for (Batch& batch : batches) lay_out(batch, tensors, queues);
  return batches;
}

TensorArgs args_at(const TensorArgs& whole, const Piece& piece, std::byte* base) {
  TensorArgs args;
  args.spec = piece.spec;
  args.param = static_cast<std::byte*>(whole.param) + piece.param.from;
  if (whole.grad != nullptr) args.grad = static_cast<const std::byte*>(whole.grad) + piece.grad.from;
  if (piece.residual.bytes > 0) args.residual = base + piece.residual.at;
  for (std::size_t s = 0; s < piece.codes.size(); ++s) {
    if (piece.codes[s].bytes > 0) args.state[s].codes = base + piece.codes[s].at;
    if (piece.scales[s].bytes > 0) args.state[s].scales = reinterpret_cast<float*>(base + piece.scales[s].at);
  }
  args.id = whole.id;
  args.offset = whole.offset + piece.begin;
  return args;
}

}  // namespace octavo::offload
