// Host memory of gradients: each tensor's own, made when it is first needed, and transfer_buffers for those
// that are added to what is there.
// SPDX-License-Identifier: MIT
#include "core/first_error.h"
#include "engine/impl.h"

#include <algorithm>

namespace octavo {

using engine::Record;
using offload::Offloaded;

namespace {

constexpr std::int64_t kTransferBytes = std::int64_t{512} << 20;  // of all transfer_buffers, as a rule

}  // namespace

// Bytes of gradients that are likely to be held, and have no memory yet.
std::int64_t Engine::Impl::expected_grad_bytes() const {
  std::int64_t bytes = 0;
  for (std::uint32_t handle = 0; handle < registry.size(); ++handle) {
    const Record& record = registry[handle];
    if (record.offloaded == nullptr || record.offloaded->held.bytes > 0) continue;
    const DType dtype = record.held_in_fp32 ? DType::f32 : record.args.spec.param_dtype;
    bytes += record.args.spec.numel * dtype_bytes(dtype) + 256;
  }
  return bytes;
}

// Memory for a tensor's gradient.
Status Engine::Impl::reserve_gradient(std::uint32_t handle, std::int64_t bytes) {
  Offloaded& own = *registry[handle].offloaded;
  if (own.held.bytes >= bytes) return {};
  Status bad = first_error({own.released.queued.wait(), own.complete.wait(), own.summed.wait()});
  if (bad.ok() && own.released.fence != nullptr) bad = own.released.fence->wait();
  if (!bad.ok()) return record_error(bad);
  auto buffer = memory.allocate(bytes, std::max(bytes, expected_grad_bytes()), pins(registry[handle].device));
  if (buffer.ok()) own.held = std::move(*buffer);
  return buffer.status();
}

// host: the CPU reads gradients that were not taken, too.
Status Engine::Impl::reserve_gradients(std::span<const std::uint32_t> handles,
                                       std::span<const DType> dtypes) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Record& record = registry[handles[i]];
    if (record.residence != Residence::host) continue;
    const std::int64_t bytes = record.args.spec.numel * dtype_bytes(dtypes[i]);
    if (Status bad = reserve_gradient(handles[i], bytes); !bad.ok()) return bad;
  }
  return {};
}

// Memory that is free, or will be.
Result<Engine::Impl::TransferBuffer*> Engine::Impl::transfer_buffer(std::int64_t bytes, bool pin) {
  TransferBuffer* oldest = nullptr;
  std::int64_t all = 0;
  for (TransferBuffer& one : transfer_buffers) {
    all += one.buffer.bytes;
    if (one.buffer.bytes < bytes) continue;
    if (one.free.passed()) return &one;
    if (oldest == nullptr) oldest = &one;
  }
  if (oldest != nullptr && all + bytes > kTransferBytes) {
    // It is the next one's turn after this.
    const auto at = transfer_buffers.begin() + (oldest - transfer_buffers.data());
    std::rotate(at, at + 1, transfer_buffers.end());
    return &transfer_buffers.back();
  }
  auto buffer = memory.allocate(bytes, bytes, pin);
  if (!buffer.ok()) return buffer.status();
  return &transfer_buffers.emplace_back(TransferBuffer{std::move(*buffer), {}});
}

}  // namespace octavo
