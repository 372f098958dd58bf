// States in host memory: one block of it for all parameters of an optimizer, state after state, so that many
// are copied to a GPU at once; and what of it belongs to which parameter.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/tensors.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace octavo::torch {

// As octavo_engine_tensor.residence.
constexpr std::uint32_t kOnDevice = 0, kOnHost = 1, kStreamed = 2;

constexpr std::int64_t kHostAlignment = 64;  // of each buffer

inline std::int64_t host_aligned(std::int64_t bytes) {
  return (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
}

// A part of a block of host memory; it keeps the block.
struct HostPlace {
  std::shared_ptr<std::byte> data;  // null: there is none
  std::int64_t bytes = 0;
};

// A zeroed block. Memory that cannot be pinned is used as it is: copies then hold up the caller.
inline std::shared_ptr<std::byte> host_block(std::int64_t bytes, bool pin) {
  void* data = nullptr;
  std::uint32_t pinned = 0;
  native::check(octavo_host_alloc(std::max<std::int64_t>(bytes, 1), pin ? 1 : 0, &data, &pinned), "octavo: ");
  if (pin && pinned == 0) {
    TORCH_WARN(
        "octavo: offloaded states are in memory that is not pinned, so copies are slower and hold up the "
        "caller: ",
        octavo_last_error());
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data), octavo_host_free);
}

// One tensor of a state.
struct StateBuffer {
  ::torch::Tensor* tensor;
  std::int64_t bytes;
  ::torch::ScalarType type;  // of a new one
};

// The elements of buffers that belong to `numel` elements of a parameter.
inline ::torch::ScalarType codes_type(std::int64_t bytes, std::int64_t numel) {
  return bytes == 4 * numel ? ::torch::kFloat32 : bytes == 2 * numel ? ::torch::kBFloat16 : ::torch::kUInt8;
}
inline ::torch::ScalarType master_type(std::int64_t bytes, std::int64_t numel) {
  return bytes == numel ? ::torch::kInt8 : ::torch::kInt16;
}

// The tensors that a state of this kind has, in the order in which they lie in host memory.
inline std::vector<StateBuffer> state_buffers(ParamState& state, const Kind& kind) {
  std::vector<StateBuffer> out;
  const std::int64_t numel = kind.spec.numel;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    const std::int64_t codes = kind.layout.codes_bytes[slot];
    out.push_back({&state.codes[slot], codes, codes_type(codes, numel)});
    if (kind.layout.scales[slot] > 0)
      out.push_back({&state.scales[slot], 4 * kind.layout.scales[slot], ::torch::kFloat32});
  }
  const std::int64_t master = kind.layout.residual_bytes;
  if (master > 0) out.push_back({&state.master, master, master_type(master, numel)});
  return out;
}

// What a state of this kind takes, and what it takes in host memory.
inline std::int64_t state_bytes(const Kind& kind) {
  std::int64_t total = 0;
  ParamState none;
  for (const StateBuffer& buffer : state_buffers(none, kind)) total += buffer.bytes;
  return total;
}
inline std::int64_t host_bytes(const Kind& kind) {
  std::int64_t total = 0;
  ParamState none;
  for (const StateBuffer& buffer : state_buffers(none, kind)) total += host_aligned(buffer.bytes);
  return total;
}

// Puts a state into its place: what it has is copied, the rest is zero. REQUIRES: a place of
// host_bytes(kind).
inline void move_to_host(ParamState& state, const Kind& kind, const HostPlace& place) {
  std::int64_t offset = 0;
  for (const StateBuffer& buffer : state_buffers(state, kind)) {
    std::byte* const at = place.data.get() + offset;
    offset += host_aligned(buffer.bytes);
    ::torch::Tensor& tensor = *buffer.tensor;
    if (tensor.defined() && tensor.data_ptr() == at) continue;
    const ::torch::ScalarType type = tensor.defined() ? tensor.scalar_type() : buffer.type;
    const auto count = buffer.bytes / static_cast<std::int64_t>(c10::elementSize(type));
    const ::torch::Tensor here = ::torch::from_blob(
        at, {count}, [keeps = place.data](void*) {}, ::torch::TensorOptions().dtype(type));
    if (tensor.defined()) {
      here.copy_(tensor.flatten());
    } else {
      here.zero_();
    }
    tensor = here;
  }
}

}  // namespace octavo::torch
