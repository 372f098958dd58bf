// Norms over gradients of which some are in host memory. Each chunk is summed where its gradient lies; one
// tree over all chunks, in the order of begin, then gives the bits that all of them on the device would give.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "offload/grad_sums.h"
#include "offload/host_threads.h"
#include "optimizers/norm_chunks.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace octavo {

using offload::Offloaded;

// The sums of a held gradient, complete.
Result<offload::GradSums*> Engine::Impl::sums_of(std::uint32_t handle, int threads) {
  const engine::Record& record = registry[handle];
  Offloaded& own = *record.offloaded;
  if (Status bad = own.complete.wait(); !bad.ok()) return record_error(bad);
  if (Status bad = own.summed.wait(); !bad.ok()) return record_error(bad);
  if (!own.has_sums) {
    const GradView view{own.held.get(), own.held_dtype, record.args.spec.numel};
    if (Status bad = offload::sum_gradient(view, *own.sums, offload::host_threads(threads)); !bad.ok())
      return bad;
    own.has_sums = true;
  }
  return own.sums.get();
}

Status Engine::Impl::measure(engine::NormSet& set, const EngineDevice& given, GradNorm* out, int threads) {
  const auto workspace = set.workspace(given.workspace);
  if (set.held.empty()) return set.backend->run(workspace, out, given.stream, threads);
  const auto queues = devices.queues(registry.tag(), set.device);
  if (!queues.ok()) return queues.status();
  offload::Queue& down = (*queues)->down();
  offload::Queue& up = (*queues)->up();

  std::span<const double> here;  // chunks on the device
  if (set.backend != nullptr) {
    const auto chunks = set.backend->run_chunks(workspace, out, given.stream, threads);
    if (!chunks.ok()) return chunks.status();
    here = *chunks;
  }
  if (Status bad = norm_sent.wait(); !bad.ok()) return record_error(bad);
  const auto bytes = static_cast<std::int64_t>(sizeof(GradNorm) + here.size_bytes());
  if (norm_memory.bytes < bytes) {
    auto buffer = memory.allocate(bytes, bytes, pins(set.device));
    if (!buffer.ok()) return buffer.status();
    norm_memory = std::move(*buffer);
  }
  auto* const norm = reinterpret_cast<GradNorm*>(norm_memory.get());
  auto* const chunks = reinterpret_cast<double*>(norm_memory.get() + sizeof(GradNorm));
  const auto caller = (*queues)->record_fence(given.stream);
  if (!caller.ok()) return record_error(caller.status());
  *norm = {};
  if (set.backend != nullptr) {
    Status bad = down.order_after(*caller);
    if (bad.ok()) bad = down.copy(norm, out, sizeof *norm, "norm down");
    if (bad.ok())
      bad = down.copy(chunks, here.data(), static_cast<std::int64_t>(here.size_bytes()), "norm down");
    const auto fence = bad.ok() ? down.record_fence() : Result<offload::Fence>(bad);
    bad = fence.ok() ? fence->wait() : fence.status();
    if (!bad.ok()) return record_error(bad);
  }
  std::vector<double> all;
  std::uint32_t max_bits = std::bit_cast<std::uint32_t>(static_cast<float>(norm->max));
  std::int64_t nonfinite = norm->nonfinite;
  const double* next = chunks;
  std::size_t place_here = 0;
  const auto add_until = [&](std::uint32_t place) {  // those on the device that come before
    for (; place_here < set.places.size() && set.places[place_here] < place; ++place_here) {
      const auto& spec = registry[begun->handles()[set.places[place_here]]].args.spec;
      const std::int64_t count = chunks_of(spec.numel);
      all.insert(all.end(), next, next + count);
      next += count;
    }
  };
  for (const std::uint32_t place : set.held) {
    add_until(place);
    const auto sums = sums_of(begun->handles()[place], threads);
    if (!sums.ok()) return sums.status();
    all.insert(all.end(), (*sums)->chunks.begin(), (*sums)->chunks.end());
    max_bits = std::max(max_bits, (*sums)->max_bits);
    nonfinite += (*sums)->nonfinite;
  }
  add_until(static_cast<std::uint32_t>(begun->handles().size()));
  *norm = offload::join_sums(all, max_bits, nonfinite);

  Status bad = up.order_after(*caller);
  if (bad.ok()) bad = up.copy(out, norm, sizeof *norm, "norm up");
  auto sent = bad.ok() ? up.record_fence() : Result<offload::Fence>(bad);
  if (!sent.ok()) return record_error(sent.status());
  norm_sent = std::move(*sent);
  return record_error((*queues)->order(given.stream, norm_sent));
}

}  // namespace octavo
