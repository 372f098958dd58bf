// Host memory of gradients: each tensor's own, made when it is first needed, and passages for those that are
// added to what is there.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "status/first_error.h"

#include <algorithm>

namespace octavo {

using engine::Record;
using offload::Offloaded;

namespace {

constexpr std::int64_t kPassageBytes = std::int64_t{512} << 20;  // of all passages, as a rule

}  // namespace

// Bytes of gradients that are likely to be held, and have no memory yet.
std::int64_t Engine::Impl::bytes_to_hold() const {
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
  if (bad.ok() && own.released.mark != nullptr) bad = own.released.mark->wait();
  if (!bad.ok()) return keep_error(bad);
  auto piece = memory.take(bytes, std::max(bytes, bytes_to_hold()), pins(registry[handle].device));
  if (piece.ok()) own.held = std::move(*piece);
  return piece.status();
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
Result<Engine::Impl::Passage*> Engine::Impl::passage(std::int64_t bytes, bool pin) {
  Passage* oldest = nullptr;
  std::int64_t all = 0;
  for (Passage& one : passages) {
    all += one.piece.bytes;
    if (one.piece.bytes < bytes) continue;
    if (one.free.passed()) return &one;
    if (oldest == nullptr) oldest = &one;
  }
  if (oldest != nullptr && all + bytes > kPassageBytes) {
    // It is the next one's turn after this.
    const auto at = passages.begin() + (oldest - passages.data());
    std::rotate(at, at + 1, passages.end());
    return &passages.back();
  }
  auto piece = memory.take(bytes, bytes, pin);
  if (!piece.ok()) return piece.status();
  return &passages.emplace_back(Passage{std::move(*piece), {}});
}

}  // namespace octavo
