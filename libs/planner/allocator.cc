// Simulates what torch's caching allocator reserves on a device for a trace of one stream: sizes in steps of
// 512 bytes, and two pools of blocks (pool.h), for small and for large ones.
// SPDX-License-Identifier: MIT
#include "planner/invalid_argument.h"
#include "planner/pool.h"

#include <octavo/plan.h>

#include <string>
#include <unordered_map>

namespace octavo::plan {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 60;  // torch's limit; sums do not overflow

// The memory of an id. Zero bytes have no block.
struct Taken {
  std::size_t block = 0;
  std::int64_t bytes = 0;
  Owner owner = Owner::activations;
};

Status bad_event(std::size_t number, const char* field, std::int64_t got, const std::string& expected) {
  return kInvalid("events[" + std::to_string(number) + "]." + field, got, expected);
}

}  // namespace

std::string_view name(Owner owner) {
  constexpr std::array<std::string_view, kOwners> kNames = {
      "weights", "gradients", "states", "master", "activations", "workspace", "communication", "batch"};
  const auto number = static_cast<std::size_t>(owner);
  return number < kOwners ? kNames[number] : "unknown";
}

Result<MemoryUse> simulate(std::span<const Event> events, const AllocatorRules& rules) {
  Pool small(true, rules.expandable_segments), large(false, rules.expandable_segments);
  std::unordered_map<std::int64_t, Taken> taken;
  MemoryUse use;
  std::int64_t allocated = 0;
  std::array<std::int64_t, kOwners> owners{};
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    if (event.bytes < 0) {
      if (event.bytes != -1) return bad_event(i, "bytes", event.bytes, "at least 0, or -1 to free it");
      const auto found = taken.find(event.id);
      if (found == taken.end()) return bad_event(i, "id", event.id, "an allocated id");
      const Taken held = found->second;
      taken.erase(found);
      if (held.bytes == 0) continue;
      Pool& pool = rounded_up(held.bytes, kStep) <= kSmall ? small : large;
      allocated -= pool.size(held.block);
      owners[static_cast<std::size_t>(held.owner)] -= held.bytes;
      pool.give_back(held.block);
      continue;
    }
    const auto owner = static_cast<std::size_t>(event.owner);
    if (owner >= kOwners) {
      return bad_event(i, "owner", static_cast<std::int64_t>(owner), "0 to " + std::to_string(kOwners - 1));
    }
    if (event.bytes > kMost - small.reserved() - large.reserved()) {
      return bad_event(i, "bytes", event.bytes, "less than 2^60 bytes in all");
    }
    const auto [at, is_new] = taken.try_emplace(event.id, Taken{0, event.bytes, event.owner});
    if (!is_new) return bad_event(i, "id", event.id, "an id that is not allocated");
    if (event.bytes == 0) continue;
    const std::int64_t bytes = rounded_up(event.bytes, kStep);
    Pool& pool = bytes <= kSmall ? small : large;
    at->second.block = pool.allocate(bytes);
    allocated += pool.size(at->second.block);
    owners[owner] += event.bytes;
    if (allocated > use.allocated) {
      use.allocated = allocated;
      use.owners = owners;
      use.peak_event = static_cast<std::int64_t>(i);
    }
  }
  use.reserved = small.reserved() + large.reserved();
  use.rounding = use.allocated;
  for (const std::int64_t bytes : use.owners) use.rounding -= bytes;
  return use;
}

}  // namespace octavo::plan
