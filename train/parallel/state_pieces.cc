// SPDX-License-Identifier: MIT
#include "train/parallel/state_pieces.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <utility>

namespace octavo::train {
namespace {

using octavo::torch::Kind;
using octavo::torch::kSlots;
using octavo::torch::ParamState;
using ::torch::Tensor;

// One tensor of a state, with its place among all of them (as ParamState::each has them).
constexpr std::size_t kTensors = 2 * kSlots + 1;

// Bytes of every tensor that belong to the first `elements` of a parameter.
std::array<std::int64_t, kTensors> bytes_of_first(const Kind& kind, std::int64_t elements) {
  const octavo_tensor_layout laid = octavo::torch::layout_of_first(kind, elements);
  std::array<std::int64_t, kTensors> out{};
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(laid.slots); ++slot) {
    out[2 * slot] = laid.codes_bytes[slot];
    out[2 * slot + 1] = 4 * laid.scales[slot];
  }
  out.back() = laid.residual_bytes;
  return out;
}

std::array<Tensor*, kTensors> tensors_of(ParamState& state) {
  std::array<Tensor*, kTensors> out{};
  std::size_t i = 0;
  ParamState::each(state, [&](const std::string&, Tensor& tensor) { out[i++] = &tensor; });
  return out;
}

// The tensors that a first step would make, on the host, to be filled.
ParamState empty_state(const Kind& kind) {
  ParamState out;
  const auto make = [](std::int64_t bytes, ::torch::ScalarType type) {
    return ::torch::empty({bytes / static_cast<std::int64_t>(c10::elementSize(type))}, type);
  };
  const std::int64_t numel = kind.spec.numel;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    const std::int64_t codes = kind.layout.codes_bytes[slot], scales = kind.layout.scales[slot];
    out.codes[slot] = make(codes, octavo::torch::codes_type(codes, numel));
    if (scales > 0) out.scales[slot] = make(4 * scales, ::torch::kFloat32);
  }
  if (const std::int64_t master = kind.layout.residual_bytes; master > 0)
    out.master = make(master, octavo::torch::master_type(master, numel));
  return out;
}

Tensor as_bytes(const Tensor& tensor) { return tensor.view({-1}).view(::torch::kUInt8); }

// Rank `from` gives bytes, which rank 0 writes to `out`.
void hand_over(World& world, int from, const Tensor& mine, const Tensor& out, std::int64_t bytes,
               const ::torch::Device& device) {
  const auto options = ::torch::TensorOptions().dtype(::torch::kUInt8).device(device);
  for (std::int64_t at = 0; at < bytes; at += kGatherBytes) {
    const std::int64_t count = std::min(kGatherBytes, bytes - at);
    const Tensor slice =
        world.rank() == from ? mine.narrow(0, at, count).to(device) : ::torch::empty({count}, options);
    world.broadcast(slice, from).wait();
    if (world.leads()) out.narrow(0, at, count).copy_(slice);
  }
}

}  // namespace

std::unique_ptr<ParamState> cut_state(const ShardedWeights& shards, std::size_t parameter, const Kind& kind,
                                      const ParamState& whole) {
  auto out = std::make_unique<ParamState>(whole);
  const Piece piece = shards.piece(parameter);
  const auto begin = bytes_of_first(kind, piece.begin), end = bytes_of_first(kind, piece.end);
  const auto tensors = tensors_of(*out);
  for (std::size_t i = 0; i < kTensors; ++i) {
    Tensor& each = *tensors[i];
    if (!each.defined()) continue;
    const std::int64_t size = each.element_size();
    each = each.view({-1}).narrow(0, begin[i] / size, (end[i] - begin[i]) / size).clone();
  }
  return out;
}

ParamState gather_state(const ShardedWeights& shards, std::size_t parameter, const Kind& kind,
                        const ParamState& mine) {
  World& world = shards.world();
  const ::torch::Device device = shards.pieces()[parameter].device();
  ParamState whole = world.leads() ? empty_state(kind) : ParamState(), own = mine;
  const auto out = tensors_of(whole), pieces = tensors_of(own);
  for (int rank = 0; rank < world.ranks(); ++rank) {
    const Piece piece = shards.layout().piece(parameter, rank);
    if (piece.elements() == 0) continue;
    const auto begin = bytes_of_first(kind, piece.begin), end = bytes_of_first(kind, piece.end);
    for (std::size_t i = 0; i < kTensors; ++i) {
      const std::int64_t bytes = end[i] - begin[i];
      if (bytes == 0) continue;
      const Tensor from = rank == world.rank() ? as_bytes(*pieces[i]) : Tensor();
      const Tensor to = world.leads() ? as_bytes(*out[i]).narrow(0, begin[i], bytes) : Tensor();
      if (rank == 0 && world.leads()) to.copy_(from);
      if (rank != 0) hand_over(world, rank, from, to, bytes, device);
    }
  }
  return whole;
}

}  // namespace octavo::train
